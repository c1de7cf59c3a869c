// out[pair] = f(x[input row] weight[ids[pair]]^T) for few pairs, rows of whole 16-byte units.
//
// `main`: one workgroup of 128 has 4 outputs of one pair, 32 invocations each; one barrier.
// `thread`: one invocation an output of one pair, 64 a workgroup, no barrier, for software adapters.
// Pairs whose expert is not in this piece of the bank are left to the other pieces. f32 accumulation.
struct Params {
    x: vec2<u32>, ids: vec2<u32>, out: vec2<u32>,
    pairs: u32, top_k: u32, per_row: u32, units: u32, outputs: u32, first: u32, count: u32, kind: u32, scaled: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [experts of the piece, outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [experts of the piece, outputs, 2 * units] bytes, nvfp4
@group(0) @binding(3) var<storage, read> matrix_scales: array<f32>; // [experts]
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>; // [rows or pairs, units * FOURS]
@group(0) @binding(5) var<storage, read> ids: array<u32>; // [rows, top_k]
@group(0) @binding(6) var<storage, read_write> out: array<f32>; // [pairs, outputs]

var<workgroup> partials: array<f32, 132>;

fn expert_of(pair: u32) -> u32 {
    return ids[params.ids.x + pair / params.top_k * params.ids.y + pair % params.top_k];
}

fn partial(pair: u32, output: u32, lane: u32, step: u32) -> f32 {
    let row = select(pair, pair / params.top_k, params.per_row == 1u);
    let base = (params.x.x + row * params.x.y) >> 2u;
    let first = ((expert_of(pair) - params.first) * params.outputs + output) * params.units;
    var sum = 0.0;
    for (var u = lane; u < params.units; u += step) {
        let unit = first + u;
        var bytes = 0u;
        if (FORMAT == NVFP4) {
            bytes = (scales[unit >> 1u] >> ((unit & 1u) * 16u)) & 0xffffu;
        }
        var w = unpack_unit(weight[unit], bytes);
        for (var k = 0u; k < FOURS; k++) {
            sum += dot(w[k], x[base + u * FOURS + k]);
        }
    }
    return sum;
}

fn store(pair: u32, output: u32, product: f32) {
    var value = product;
    if (params.scaled == 1u) {
        value *= matrix_scales[expert_of(pair)];
    }
    out[params.out.x + pair * params.out.y + output] = pointwise(params.kind, value);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    let blocks = (params.outputs + 3u) / 4u;
    let pair = i / blocks;
    if (pair >= params.pairs) {
        return;
    }
    // Wraps to a large number below the piece.
    if (expert_of(pair) - params.first >= params.count) {
        return;
    }
    let first = i % blocks * 4u;
    let output = min(first + lane / 32u, params.outputs - 1u);
    partials[lane + lane / 32u] = partial(pair, output, lane % 32u, 32u);
    workgroupBarrier();
    if (lane < 4u && first + lane < params.outputs) {
        var sum = 0.0;
        for (var k = 0u; k < 32u; k++) {
            sum += partials[lane * 33u + k];
        }
        store(pair, first + lane, sum);
    }
}

@compute @workgroup_size(64)
fn thread(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let blocks = (params.outputs + 63u) / 64u;
    let i = flat(group, count);
    let pair = i / blocks;
    let output = i % blocks * 64u + lane;
    if (pair >= params.pairs || output >= params.outputs) {
        return;
    }
    if (expert_of(pair) - params.first >= params.count) {
        return;
    }
    store(pair, output, partial(pair, output, 0u, 1u));
}
