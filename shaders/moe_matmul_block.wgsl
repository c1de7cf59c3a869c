// out[pair] = f(x[input row] weight[expert]^T) for pairs sorted by expert, or for each alone, columns in fours; see
// common_block.wgsl and common_group.wgsl. One workgroup of 16 a tile of ROWS pairs of one expert by 128 outputs.
struct Params {
    x: vec2<u32>, order: vec2<u32>, offsets: vec2<u32>, out: vec2<u32>,
    pairs: u32, top_k: u32, per_row: u32, inputs: u32, outputs: u32, first: u32, count: u32, kind: u32, scaled: u32,
    tiles: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // [experts of the piece, outputs, inputs], packed
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [experts of the piece, outputs, inputs / 16] bytes, nvfp4
@group(0) @binding(3) var<storage, read> matrix_scales: array<f32>; // [experts]
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>; // [rows or pairs, inputs / 4]
@group(0) @binding(5) var<storage, read> order: array<u32>; // [pairs, 1], or ids [rows, top_k] where not SORTED
@group(0) @binding(6) var<storage, read> offsets: array<u32>; // [experts + 1, 1]
@group(0) @binding(7) var<storage, read_write> out: array<f32>; // [pairs, outputs]

const PAIRS: u32 = ROWS;

fn input_at(place: u32) -> u32 {
    let pair = pair_at(place);
    let row = select(pair, pair / params.top_k, params.per_row == 1u);
    return (params.x.x + row * params.x.y) >> 2u;
}

// Where the inputs of four places begin, in fours; places past the last repeat it, nobody stores them.
fn inputs_at(place: u32, end: u32) -> vec4<u32> {
    let last = end - 1u;
    return vec4<u32>(
        input_at(min(place, last)), input_at(min(place + 1u, last)),
        input_at(min(place + 2u, last)), input_at(min(place + 3u, last)),
    );
}

fn outputs_at(expert: u32, output: u32) -> vec4<u32> {
    let outputs = min(vec4<u32>(output, output + 1u, output + 2u, output + 3u), vec4<u32>(params.outputs - 1u));
    return ((expert - params.first) * params.outputs + outputs) * (params.inputs / 4u);
}

@compute @workgroup_size(16)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    let columns = (params.outputs + 127u) / 128u;
    let output = i % columns * 128u + lane * 8u;
    if (i >= params.tiles * columns || output >= params.outputs) {
        return;
    }
    let run = find(i / columns);
    // Wraps to a large number below the piece.
    if (run.x - params.first >= params.count) {
        return;
    }
    var far = vec4<u32>();
    if (ROWS > 4u) {
        far = inputs_at(run.y + 4u, run.z);
    }
    var sums = products(
        params.inputs / 4u, inputs_at(run.y, run.z), far, outputs_at(run.x, output), outputs_at(run.x, output + 4u),
    );
    var scale = 1.0;
    if (params.scaled == 1u) {
        scale = matrix_scales[run.x];
    }
    let outputs = min(8u, params.outputs - output);
    for (var r = 0u; r < run.z - run.y; r++) {
        let at = params.out.x + pair_at(run.y + r) * params.out.y + output;
        for (var o = 0u; o < outputs; o++) {
            out[at + o] = pointwise(params.kind, sums[2u * r + o / 4u][o % 4u] * scale);
        }
    }
}
