// out = x weight^T + bias, or out += scale * that, for many rows and for rows of any length.
// One workgroup of 256 a tile of 64 rows by 64 outputs of one piece of the weight; see tile.wgsl. f32 accumulation.
struct Params {
    x: vec2<u32>, bias: vec2<u32>, out: vec2<u32>,
    rows: u32, inputs: u32, outputs: u32, first: u32, row_tiles: u32, biased: u32, accumulate: u32,
    scale: f32, matrix_scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // [outputs, inputs], packed
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [outputs, inputs / 16] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> x: array<f32>; // [rows, inputs]
@group(0) @binding(4) var<storage, read> bias: array<f32>; // [1, all outputs]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, all outputs]

fn four_inputs(row: u32, col: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (row < params.rows) {
        let at = params.x.x + row * params.x.y + col;
        if (col < params.inputs) { v.x = x[at]; }
        if (col + 1u < params.inputs) { v.y = x[at + 1u]; }
        if (col + 2u < params.inputs) { v.z = x[at + 2u]; }
        if (col + 3u < params.inputs) { v.w = x[at + 3u]; }
    }
    return v;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    if (i >= params.row_tiles * ((params.outputs + 63u) / 64u)) {
        return;
    }
    let first_row = i % params.row_tiles * 64u;
    let first_output = i / params.row_tiles * 64u;
    // Past the end an invocation repeats the last output; nobody stores it.
    let staged_output = min(first_output + (lane & 63u), params.outputs - 1u);
    var sums: array<vec4<f32>, 4>;
    for (var col = 0u; col < params.inputs; col += 16u) {
        let own = col + (lane >> 6u) * 4u;
        stage_four(lane, four_weights(staged_output, own), four_inputs(first_row + (lane & 63u), own));
        workgroupBarrier();
        multiply_tile(lane, &sums);
        workgroupBarrier();
    }
    for (var r = 0u; r < 4u; r++) {
        let row = first_row + (lane >> 4u) * 4u + r;
        for (var c = 0u; c < 4u; c++) {
            let output = first_output + (lane & 15u) * 4u + c;
            if (row < params.rows && output < params.outputs) {
                store(row, params.first + output, sums[r][c] * params.matrix_scale);
            }
        }
    }
}

fn store(row: u32, output: u32, product: f32) {
    var value = product;
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
