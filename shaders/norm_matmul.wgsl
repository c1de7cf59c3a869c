// out = (norm * x / sqrt(mean x^2 + eps)) weight^T for ROWS rows at most (1 to 8), rows of whole 16-byte units.
//
// The gain goes into the product; the squares of the row are summed beside it by the same invocations and divided out at
// the end: the norm costs no dispatch of its own. Entries and sharing of the work: common_vec.wgsl. f32 accumulation.
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

const NORMED: u32 = 1u;

fn begin(i: u32, width: u32) -> u32 {
    return select(NONE, i * width, i * width < params.outputs);
}

fn unit_row(output: u32) -> u32 {
    return output * params.units;
}

fn row_at(row: u32) -> u32 {
    return (params.x.x + row * params.x.y) >> 2u;
}

fn x_four(row: u32, col: u32) -> vec4<f32> {
    return x[row_at(row) + col] * norm[(params.norm.x >> 2u) + col];
}

fn share(row: u32, lane: u32, step: u32) -> f32 {
    var sum = 0.0;
    for (var i = lane; i < params.units * FOURS; i += step) {
        let four = x[row_at(row) + i];
        sum += dot(four, four);
    }
    return sum;
}

fn store(row: u32, output: u32, product: f32, squares: f32) {
    let width = f32(params.units * FOURS * 4u);
    let factor = inverseSqrt(squares / width + params.eps);
    out[params.out.x + row * params.out.y + params.first + output] = product * factor * params.matrix_scale;
}
