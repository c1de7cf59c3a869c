// out = x weight^T + bias, or out += scale * that, for ROWS rows at most (1 to 8), rows of whole 16-byte units.
//
// `main`: one workgroup of 128 has 4 outputs of one piece of the weight, 32 invocations each; one barrier.
// `subgroups`: the same with one subgroup of SUBGROUP lanes an output and no workgroup memory.
// `thread`: one invocation an output, 64 a workgroup, no barrier, for software adapters.
// f32 accumulation.
struct Params {
    x: vec2<u32>, bias: vec2<u32>, out: vec2<u32>,
    rows: u32, units: u32, outputs: u32, first: u32, biased: u32, accumulate: u32,
    scale: f32, matrix_scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [outputs, 2 * units] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>; // [rows, units * FOURS]
@group(0) @binding(4) var<storage, read> bias: array<f32>; // [1, all outputs]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, all outputs]

var<workgroup> partials: array<f32, ROWS * 132>;

// Partial products of an output with every row, over units lane, lane + step, ...
fn partial(output: u32, lane: u32, step: u32) -> array<f32, ROWS> {
    var sums: array<f32, ROWS>;
    for (var u = lane; u < params.units; u += step) {
        let unit = output * params.units + u;
        var bytes = 0u;
        if (FORMAT == NVFP4) {
            bytes = (scales[unit >> 1u] >> ((unit & 1u) * 16u)) & 0xffffu;
        }
        var w = unpack_unit(weight[unit], bytes);
        for (var r = 0u; r < ROWS; r++) {
            // Rows past the last repeat it; nobody stores them.
            let row = min(r, params.rows - 1u);
            let base = ((params.x.x + row * params.x.y) >> 2u) + u * FOURS;
            for (var k = 0u; k < FOURS; k++) {
                sums[r] += dot(w[k], x[base + k]);
            }
        }
    }
    return sums;
}

fn store(row: u32, output: u32, product: f32) {
    var value = product * params.matrix_scale;
    if (params.biased == 1u) {
        value += bias[params.bias.x + output];
    }
    let at = params.out.x + row * params.out.y + output;
    if (params.accumulate == 1u) {
        out[at] = out[at] + params.scale * value;
    } else {
        out[at] = value;
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = flat(group, count) * 4u;
    if (first >= params.outputs) {
        return;
    }
    let output = min(first + lane / 32u, params.outputs - 1u);
    var sums = partial(output, lane % 32u, 32u);
    // A column of padding every 32 keeps the sums below from meeting in one bank.
    for (var r = 0u; r < ROWS; r++) {
        partials[r * 132u + lane + lane / 32u] = sums[r];
    }
    workgroupBarrier();
    let row = lane / 4u;
    if (row < params.rows && row < ROWS && first + lane % 4u < params.outputs) {
        var sum = 0.0;
        for (var k = 0u; k < 32u; k++) {
            sum += partials[row * 132u + lane % 4u * 33u + k];
        }
        store(row, params.first + first + lane % 4u, sum);
    }
}

@compute @workgroup_size(64)
fn thread(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let output = flat(group, count) * 64u + lane;
    if (output >= params.outputs) {
        return;
    }
    var sums = partial(output, 0u, 1u);
    for (var r = 0u; r < min(ROWS, params.rows); r++) {
        store(r, params.first + output, sums[r]);
    }
}
