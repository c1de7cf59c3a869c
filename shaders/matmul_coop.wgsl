// out = x weight^T + bias, or out += scale * that, for many rows, on cooperative matrices; see common_coop.wgsl.
// One workgroup of 128 a tile of 64 rows by 128 outputs of one piece of the weight. Limits: inputs a multiple of 32, rows
// of x in fours.
struct Params {
    x: vec2<u32>, bias: vec2<u32>, out: vec2<u32>,
    rows: u32, inputs: u32, outputs: u32, first: u32, row_tiles: u32, biased: u32, accumulate: u32,
    scale: f32, matrix_scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [outputs, inputs / 16] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> row_scales: array<f32>; // [rows], powers of two
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>; // [rows, inputs / 4]
@group(0) @binding(5) var<storage, read> bias: array<f32>; // [1, all outputs]
@group(0) @binding(6) var<storage, read_write> out: array<f32>; // [rows, all outputs]

var<private> first_row: u32;
var<private> first_output: u32;

fn unit_row(output: u32) -> u32 {
    return min(first_output + output, params.outputs - 1u) * (params.inputs / (4u * FOURS));
}

fn x_at(row: u32) -> u32 {
    return (params.x.x + min(first_row + row, params.rows - 1u) * params.x.y) >> 2u;
}

fn row_scale(row: u32) -> f32 {
    return row_scales[min(first_row + row, params.rows - 1u)];
}

fn store(tile_row: u32, tile_output: u32, product: f32) {
    let row = first_row + tile_row;
    let output = first_output + tile_output;
    if (row >= params.rows || output >= params.outputs) {
        return;
    }
    var value = product * inverse_power(row_scales[row]) * params.matrix_scale;
    if (params.biased == 1u) {
        value += bias[params.bias.x + params.first + output];
    }
    let at = params.out.x + row * params.out.y + params.first + output;
    if (params.accumulate == 1u) {
        out[at] = out[at] + params.scale * value;
    } else {
        out[at] = value;
    }
}

@compute @workgroup_size(128)
fn coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_id) which: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let i = flat(group, count);
    if (i >= params.row_tiles * ((params.outputs + 127u) / 128u)) {
        return;
    }
    first_row = i % params.row_tiles * 64u;
    first_output = i / params.row_tiles * 128u;
    multiply_tile(which, lane);
}
