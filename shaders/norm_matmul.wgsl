// out = (norm * x / sqrt(mean x^2 + eps)) weight^T for ROWS rows at most (1 to 8), rows of whole 16-byte units.
//
// An output's invocations read the whole row of x for the product, so they sum its squares on the way and divide at the
// end: the norm costs no dispatch of its own. `main`: one workgroup of 128 has 4 outputs of one piece of the weight, 32
// invocations each; one barrier. `thread`: one invocation an output, 64 a workgroup, no barrier, for software adapters.
// f32 accumulation.
struct Params {
    x: vec2<u32>, norm: vec2<u32>, out: vec2<u32>,
    rows: u32, units: u32, outputs: u32, first: u32, eps: f32, matrix_scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [outputs, 2 * units] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>; // [rows, units * FOURS]
@group(0) @binding(4) var<storage, read> norm: array<vec4<f32>>; // [1, units * FOURS]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, all outputs]

var<workgroup> partials: array<vec2<f32>, ROWS * 132>;

// Products of an output with every row, and the squares of the row, over units lane, lane + step, ...
fn partial(output: u32, lane: u32, step: u32) -> array<vec2<f32>, ROWS> {
    var sums: array<vec2<f32>, ROWS>;
    let gain = params.norm.x >> 2u;
    for (var u = lane; u < params.units; u += step) {
        let unit = output * params.units + u;
        var bytes = 0u;
        if (FORMAT == NVFP4) {
            bytes = (scales[unit >> 1u] >> ((unit & 1u) * 16u)) & 0xffffu;
        }
        var w = unpack_unit(weight[unit], bytes);
        for (var k = 0u; k < FOURS; k++) {
            let gained = w[k] * norm[gain + u * FOURS + k];
            for (var r = 0u; r < ROWS; r++) {
                // Rows past the last repeat it; nobody stores them.
                let row = min(r, params.rows - 1u);
                let value = x[((params.x.x + row * params.x.y) >> 2u) + u * FOURS + k];
                sums[r] += vec2<f32>(dot(gained, value), dot(value, value));
            }
        }
    }
    return sums;
}

fn store(row: u32, output: u32, sums: vec2<f32>) {
    let width = f32(params.units * FOURS * 4u);
    let factor = inverseSqrt(sums.y / width + params.eps);
    out[params.out.x + row * params.out.y + output] = sums.x * factor * params.matrix_scale;
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
    var sums = partial(min(first + lane / 32u, params.outputs - 1u), lane % 32u, 32u);
    // A column of padding every 32 keeps the sums below from meeting in one bank.
    for (var r = 0u; r < ROWS; r++) {
        partials[r * 132u + lane + lane / 32u] = sums[r];
    }
    workgroupBarrier();
    let row = lane / 4u;
    if (row < params.rows && row < ROWS && first + lane % 4u < params.outputs) {
        var sum = vec2<f32>();
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
