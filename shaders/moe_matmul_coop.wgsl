// out[pair] = f(x[input row] weight[expert]^T) for many pairs, sorted by expert, on cooperative matrices; see
// common_coop.wgsl.
//
// One workgroup of 128 a tile of 64 pairs of one expert by 128 outputs. The grid has a tile for every 64 pairs and one
// more an expert; a workgroup finds its expert by walking the offsets, surplus ones find none. Limits: inputs a multiple
// of 32, rows of x in fours.
struct Params {
    x: vec2<u32>, order: vec2<u32>, offsets: vec2<u32>, out: vec2<u32>,
    pairs: u32, top_k: u32, per_row: u32, inputs: u32, outputs: u32, first: u32, count: u32, kind: u32, scaled: u32,
    tiles: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [experts of the piece, outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [experts of the piece, outputs, inputs / 16] bytes, nvfp4
@group(0) @binding(3) var<storage, read> matrix_scales: array<f32>; // [experts]
@group(0) @binding(4) var<storage, read> row_scales: array<f32>; // [rows or pairs], powers of two
@group(0) @binding(5) var<storage, read> x: array<vec4<f32>>; // [rows or pairs, inputs / 4]
@group(0) @binding(6) var<storage, read> order: array<u32>; // [pairs, 1]
@group(0) @binding(7) var<storage, read> offsets: array<u32>; // [experts + 1, 1]
@group(0) @binding(8) var<storage, read_write> out: array<f32>; // [pairs, outputs]

const PAIRS: u32 = 64u;

var<private> run: vec3<u32>; // expert, first and end of its places in `order`
var<private> first_output: u32;

fn unit_row(output: u32) -> u32 {
    let row = (run.x - params.first) * params.outputs + min(first_output + output, params.outputs - 1u);
    return row * (params.inputs / (4u * FOURS));
}

// Row of x of a row of the tile.
fn input_row(row: u32) -> u32 {
    let pair = pair_at(min(run.y + row, run.z - 1u));
    return select(pair, pair / params.top_k, params.per_row == 1u);
}

fn x_at(row: u32) -> u32 {
    return (params.x.x + input_row(row) * params.x.y) >> 2u;
}

fn row_scale(row: u32) -> f32 {
    return row_scales[input_row(row)];
}

fn store(row: u32, tile_output: u32, product: f32) {
    let output = first_output + tile_output;
    if (run.y + row >= run.z || output >= params.outputs) {
        return;
    }
    var value = product * inverse_power(row_scale(row));
    if (params.scaled == 1u) {
        value *= matrix_scales[run.x];
    }
    out[params.out.x + pair_at(run.y + row) * params.out.y + output] = pointwise(params.kind, value);
}

@compute @workgroup_size(128)
fn coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_id) which: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let i = flat(group, count);
    let columns = (params.outputs + 127u) / 128u;
    if (i >= params.tiles * columns) {
        return;
    }
    let found = find(i / columns);
    // Wraps to a large number below the piece.
    if (found.x - params.first >= params.count) {
        return;
    }
    run = found;
    first_output = i % columns * 128u;
    multiply_tile(which, lane);
}
