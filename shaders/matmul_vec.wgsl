// out = x weight^T + bias, or out += scale * that, for ROWS rows at most (1 to 8), rows of whole 16-byte units. Where
// top_k is not 0, the weighted sum of that many `pairs` of the row goes into out with the product.
// Entries and sharing of the work: common_vec.wgsl. One dispatch a piece of the weight. f32 accumulation.
struct Params {
    x: vec2<u32>, bias: vec2<u32>, out: vec2<u32>, pairs: vec2<u32>, choices: vec2<u32>,
    rows: u32, units: u32, outputs: u32, first: u32, biased: u32, accumulate: u32, top_k: u32,
    scale: f32, matrix_scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [outputs, 2 * units] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>; // [rows, units * FOURS]
@group(0) @binding(4) var<storage, read> bias: array<f32>; // [1, all outputs]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, all outputs]
@group(0) @binding(6) var<storage, read> pairs: array<f32>; // [rows * top_k, all outputs]
@group(0) @binding(7) var<storage, read> choices: array<f32>; // [rows, top_k] weights

const NORMED: u32 = 0u;

fn begin(i: u32, width: u32) -> u32 {
    return select(NONE, i * width, i * width < params.outputs);
}

fn unit_row(output: u32) -> u32 {
    return output * params.units;
}

fn x_four(row: u32, col: u32) -> vec4<f32> {
    return x[((params.x.x + row * params.x.y) >> 2u) + col];
}

fn gain(col: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}

fn finish(row: u32, squares: f32, lane: u32, step: u32) {}

fn store(row: u32, output: u32, product: f32, squares: f32) {
    let col = params.first + output;
    var value = product * params.matrix_scale;
    if (params.biased == 1u) {
        value += bias[params.bias.x + col];
    }
    for (var k = 0u; k < params.top_k; k++) {
        let pair = row * params.top_k + k;
        value += choices[params.choices.x + row * params.choices.y + k] * pairs[params.pairs.x + pair * params.pairs.y + col];
    }
    let at = params.out.x + row * params.out.y + col;
    if (params.accumulate == 1u) {
        out[at] = out[at] + params.scale * value;
    } else {
        out[at] = value;
    }
}
