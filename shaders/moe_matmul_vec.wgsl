// out[pair] = f(x[input row] weight[ids[pair]]^T) for few pairs, rows of whole 16-byte units.
//
// A workgroup has outputs of one pair. Entries and sharing of the work: common_vec.wgsl. Pairs whose expert is not in
// this piece of the bank are left to the other pieces. Which expert a pair has, `expert_of` says: it is given, or chosen
// here (common_choice.wgsl). f32 accumulation.
struct Params {
    x: vec2<u32>, ids: vec2<u32>, out: vec2<u32>, logits: vec2<u32>, bias: vec2<u32>, weights: vec2<u32>,
    rows: u32, units: u32, outputs: u32,
    pairs: u32, top_k: u32, per_row: u32, first: u32, count: u32, kind: u32, scaled: u32,
    experts: u32, biased: u32, normalise: u32, eps: f32, scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [experts of the piece, outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [experts of the piece, outputs, 2 * units] bytes, nvfp4
@group(0) @binding(3) var<storage, read> matrix_scales: array<f32>; // [experts]
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>; // [rows or pairs, units * FOURS]
@group(0) @binding(6) var<storage, read_write> out: array<f32>; // [pairs, outputs]

const NORMED: u32 = 0u;

// What the workgroup works on.
var<private> pair: u32;
var<private> expert: u32;
var<private> input_at: u32;

fn begin(i: u32, width: u32) -> u32 {
    let blocks = (params.outputs + width - 1u) / width;
    let own = i / blocks;
    if (own >= params.pairs) {
        return NONE;
    }
    let row = own / params.top_k;
    let chosen = expert_of(row, own % params.top_k, i % blocks == 0u);
    if (is_left_out(chosen)) {
        return NONE;
    }
    pair = own;
    expert = chosen;
    input_at = (params.x.x + select(own, row, params.per_row == 1u) * params.x.y) >> 2u;
    return i % blocks * width;
}

fn unit_row(output: u32) -> u32 {
    return (min(expert - params.first, params.count - 1u) * params.outputs + output) * params.units;
}

fn x_four(row: u32, col: u32) -> vec4<f32> {
    return x[input_at + col];
}

fn gain(col: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}

fn finish(row: u32, squares: f32, lane: u32, step: u32) {}

fn store(row: u32, output: u32, product: f32, squares: f32) {
    // Wraps to a large number below the piece.
    if (expert - params.first >= params.count) {
        return;
    }
    var value = product;
    if (params.scaled == 1u) {
        value *= matrix_scales[expert];
    }
    out[params.out.x + pair * params.out.y + output] = pointwise(params.kind, value);
}
