// A tile of 64 rows of x by 64 outputs, 256 invocations, 4 x 4 results each, 16 columns a step: 8 KiB of workgroup memory.
// The kernel that includes this binds `weight` and `scales` as words and has `inputs` in its parameters.

var<workgroup> tile_x: array<f32, 1024>; // [16 columns, 64 rows]
var<workgroup> tile_w: array<f32, 1024>; // [16 columns, 64 outputs]

// Element of a row whose length is no multiple of four; NVFP4 rows always are.
fn ragged_weight(row: u32, col: u32) -> f32 {
    if (col >= params.inputs) {
        return 0.0;
    }
    let i = row * params.inputs + col;
    if (FORMAT == F32) {
        return bitcast<f32>(weight[i]);
    }
    if (FORMAT == FP8) {
        return e4m3_pair(weight[i >> 2u] >> ((i & 3u) * 8u)).x;
    }
    let pair = half_pair(weight[i >> 1u]);
    return select(pair.x, pair.y, (i & 1u) == 1u);
}

// Four elements from column `col`, a multiple of four; zero past the row.
fn four_weights(row: u32, col: u32) -> vec4<f32> {
    if (ALIGNED == 0u) {
        return vec4<f32>(
            ragged_weight(row, col),
            ragged_weight(row, col + 1u),
            ragged_weight(row, col + 2u),
            ragged_weight(row, col + 3u),
        );
    }
    if (col >= params.inputs) {
        return vec4<f32>();
    }
    if (FORMAT == NVFP4) {
        let eight = e2m1_eight(weight[row * (params.inputs >> 3u) + (col >> 3u)]);
        let block = row * (params.inputs >> 4u) + (col >> 4u);
        let byte = (scales[block >> 2u] >> ((block & 3u) * 8u)) & 0xffu;
        return select(eight[0], eight[1], (col & 4u) != 0u) * block_scale(byte);
    }
    let i = row * params.inputs + col;
    if (FORMAT == F32) {
        return bitcast<vec4<f32>>(vec4<u32>(weight[i], weight[i + 1u], weight[i + 2u], weight[i + 3u]));
    }
    if (FORMAT == FP8) {
        return e4m3_four(weight[i >> 2u]);
    }
    let word = i >> 1u;
    return vec4<f32>(half_pair(weight[word]), half_pair(weight[word + 1u]));
}

// Column `j` of the fours that an invocation stages: invocation `lane` has row or output `lane & 63`.
fn stage_four(lane: u32, w: vec4<f32>, v: vec4<f32>) {
    let at = (lane >> 6u) * 256u + (lane & 63u);
    tile_w[at] = w.x;
    tile_w[at + 64u] = w.y;
    tile_w[at + 128u] = w.z;
    tile_w[at + 192u] = w.w;
    tile_x[at] = v.x;
    tile_x[at + 64u] = v.y;
    tile_x[at + 128u] = v.z;
    tile_x[at + 192u] = v.w;
}

// Adds the products of the staged columns: rows 4 * (lane / 16) .., outputs 4 * (lane % 16) ..
fn multiply_tile(lane: u32, sums: ptr<function, array<vec4<f32>, 4>>) {
    let row = (lane >> 4u) * 4u;
    let output = (lane & 15u) * 4u;
    for (var k = 0u; k < 16u; k++) {
        let a = k * 64u + row;
        let b = k * 64u + output;
        let w = vec4<f32>(tile_w[b], tile_w[b + 1u], tile_w[b + 2u], tile_w[b + 3u]);
        (*sums)[0] += tile_x[a] * w;
        (*sums)[1] += tile_x[a + 1u] * w;
        (*sums)[2] += tile_x[a + 2u] * w;
        (*sums)[3] += tile_x[a + 3u] * w;
    }
}
