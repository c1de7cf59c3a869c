// out = f((norm * x / sqrt(mean x^2 + eps)) weight^T + bias) for ROWS rows at most (1 to 8), rows of whole 16-byte units.
//
// The gain goes into x as it is staged, its squares are summed on the way and divided out at the end: the norm costs no
// dispatch of its own. Where `keep` is 1 the first workgroup leaves the normed rows for others. Where CONV is not 0,
// `after` takes each product before f into a convolution of that width (common_conv.wgsl). Where RIDER is 1, another
// product of f32 weights rides along (common_rider.wgsl). Where SIBLINGS is 1, two more products do (common_siblings.wgsl).
// Entries and sharing of the work: common_vec.wgsl. f32 accumulation.
struct Params {
    x: vec2<u32>, norm: vec2<u32>, bias: vec2<u32>, out: vec2<u32>, normed: vec2<u32>,
    taps: vec2<u32>, conv_bias: vec2<u32>, state: vec2<u32>, places: vec2<u32>, conv_out: vec2<u32>,
    rider_out: vec2<u32>, out_b: vec2<u32>, out_c: vec2<u32>,
    rows: u32, units: u32, outputs: u32, first: u32, biased: u32, kind: u32, keep: u32,
    conv_first: u32, channels: u32, conv_biased: u32, conv_kind: u32,
    rider_outputs: u32, outputs_b: u32, outputs_c: u32,
    eps: f32, matrix_scale: f32, scale_b: f32, scale_c: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [outputs, 2 * units] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>; // [rows, units * FOURS]
@group(0) @binding(4) var<storage, read> norm: array<vec4<f32>>; // [1, units * FOURS]
@group(0) @binding(5) var<storage, read> bias: array<f32>; // [1, all outputs]
@group(0) @binding(6) var<storage, read_write> out: array<f32>; // [rows, all outputs]
@group(0) @binding(7) var<storage, read_write> normed: array<f32>; // [rows, units * FOURS * 4]

const NORMED: u32 = 1u;

fn begin(i: u32, width: u32) -> u32 {
    return place_among(i, width);
}

fn unit_row(output: u32) -> u32 {
    return output * params.units;
}

fn x_four(row: u32, col: u32) -> vec4<f32> {
    return x[((params.x.x + row * params.x.y) >> 2u) + col];
}

fn gain(col: u32) -> vec4<f32> {
    return norm[(params.norm.x >> 2u) + col];
}

fn factor(squares: f32) -> f32 {
    return inverseSqrt(squares / f32(params.units * FOURS * 4u) + params.eps);
}

fn finish(row: u32, squares: f32, lane: u32, step: u32) {
    if (params.keep == 0u || params.first > 0u) {
        return;
    }
    let scale = factor(squares);
    for (var i = lane; i < params.units * FOURS; i += step) {
        let four = x_four(row, i) * scale * gain(i);
        let at = params.normed.x + row * params.normed.y + i * 4u;
        normed[at] = four.x;
        normed[at + 1u] = four.y;
        normed[at + 2u] = four.z;
        normed[at + 3u] = four.w;
    }
}

fn store(row: u32, output: u32, product: f32, squares: f32) {
    let col = params.first + output;
    var value = product * factor(squares) * matrix_scale();
    if (params.biased == 1u) {
        value += bias[params.bias.x + col];
    }
    leave(row, col, pointwise(params.kind, value));
    after(row, col, value);
}
