// out[pair] = f(x[input row] weight[expert]^T) for many pairs, sorted by expert, and for rows of any length.
//
// One workgroup of 256 a tile of 64 pairs of one expert by 64 outputs; see tile.wgsl. The grid has a tile for every
// 64 pairs and one more an expert; a workgroup finds its expert by walking the offsets, surplus ones find none.
// With SORTED 0 there is no order: tile t is pair t alone. f32 accumulation.
struct Params {
    x: vec2<u32>, order: vec2<u32>, offsets: vec2<u32>, out: vec2<u32>,
    pairs: u32, top_k: u32, per_row: u32, inputs: u32, outputs: u32, first: u32, count: u32, kind: u32, scaled: u32,
    tiles: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // [experts of the piece, outputs, inputs], packed
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [experts of the piece, outputs, inputs / 16] bytes, nvfp4
@group(0) @binding(3) var<storage, read> matrix_scales: array<f32>; // [experts]
@group(0) @binding(4) var<storage, read> x: array<f32>; // [rows or pairs, inputs]
@group(0) @binding(5) var<storage, read> order: array<u32>; // [pairs, 1], or ids [rows, top_k] where not SORTED
@group(0) @binding(6) var<storage, read> offsets: array<u32>; // [experts + 1, 1]
@group(0) @binding(7) var<storage, read_write> out: array<f32>; // [pairs, outputs]

const PAIRS: u32 = 64u;

fn four_inputs(place: u32, end: u32, col: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (place < end) {
        let pair = pair_at(place);
        let row = select(pair, pair / params.top_k, params.per_row == 1u);
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
    let columns = (params.outputs + 63u) / 64u;
    if (i >= params.tiles * columns) {
        return;
    }
    let run = find(i / columns);
    // Wraps to a large number below the piece.
    if (run.x - params.first >= params.count) {
        return;
    }
    let first_output = i % columns * 64u;
    let staged_output = min(first_output + (lane & 63u), params.outputs - 1u);
    let weight_row = (run.x - params.first) * params.outputs + staged_output;
    var sums: array<vec4<f32>, 4>;
    for (var col = 0u; col < params.inputs; col += 16u) {
        let own = col + (lane >> 6u) * 4u;
        stage_four(lane, four_weights(weight_row, own), four_inputs(run.y + (lane & 63u), run.z, own));
        workgroupBarrier();
        multiply_tile(lane, &sums);
        workgroupBarrier();
    }
    var scale = 1.0;
    if (params.scaled == 1u) {
        scale = matrix_scales[run.x];
    }
    for (var r = 0u; r < 4u; r++) {
        let place = run.y + (lane >> 4u) * 4u + r;
        if (place >= run.z) {
            continue;
        }
        let at = params.out.x + pair_at(place) * params.out.y;
        for (var c = 0u; c < 4u; c++) {
            let output = first_output + (lane & 15u) * 4u + c;
            if (output < params.outputs) {
                out[at + output] = pointwise(params.kind, sums[r][c] * scale);
            }
        }
    }
}
