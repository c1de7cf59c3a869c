// out[r] = scale * table[tokens[r]] for the tokens whose row lies in this piece of the table.
// One invocation an element; 256 elements a workgroup.
struct Params {
    tokens: vec2<u32>, out: vec2<u32>,
    rows: u32, cols: u32, first: u32, count: u32, scale: f32, matrix_scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // [count, cols], packed
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [count, cols / 16] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> tokens: array<u32>; // [rows, 1]
@group(0) @binding(4) var<storage, read_write> out: array<f32>; // [rows, cols]

fn element(row: u32, col: u32) -> f32 {
    let i = row * params.cols + col;
    if (FORMAT == F32) {
        return bitcast<f32>(weight[i]);
    }
    if (FORMAT == F16 || FORMAT == BF16) {
        let pair = half_pair(weight[i >> 1u]);
        return select(pair.x, pair.y, (i & 1u) == 1u);
    }
    if (FORMAT == FP8) {
        return e4m3_pair(weight[i >> 2u] >> ((i & 3u) * 8u)).x * params.matrix_scale;
    }
    let word = weight[row * (params.cols >> 3u) + (col >> 3u)];
    let block = row * (params.cols >> 4u) + (col >> 4u);
    let byte = (scales[block >> 2u] >> ((block & 3u) * 8u)) & 0xffu;
    return e2m1_one(word >> ((col & 7u) * 4u)) * block_scale(byte) * params.matrix_scale;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.rows * params.cols) {
        return;
    }
    let row = i / params.cols;
    let col = i % params.cols;
    // Wraps to a large number below the piece.
    let local = tokens[params.tokens.x + row * params.tokens.y] - params.first;
    if (local >= params.count) {
        return;
    }
    out[params.out.x + row * params.out.y + col] = params.scale * element(local, col);
}
