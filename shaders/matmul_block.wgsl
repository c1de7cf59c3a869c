// out = x weight^T + bias, or out += scale * that, for any number of rows whose columns come in fours; see
// common_block.wgsl. One workgroup of 16 a block of ROWS rows by 128 outputs of one piece of the weight.
struct Params {
    x: vec2<u32>, bias: vec2<u32>, out: vec2<u32>,
    rows: u32, inputs: u32, outputs: u32, first: u32, row_blocks: u32, biased: u32, accumulate: u32,
    scale: f32, matrix_scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // [outputs, inputs], packed
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [outputs, inputs / 16] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>; // [rows, inputs / 4]
@group(0) @binding(4) var<storage, read> bias: array<f32>; // [1, all outputs]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, all outputs]

// Where rows of x begin, in fours; rows past the last repeat it, nobody stores them.
fn rows_at(row: u32) -> vec4<u32> {
    let rows = min(vec4<u32>(row, row + 1u, row + 2u, row + 3u), vec4<u32>(params.rows - 1u));
    return (params.x.x + rows * params.x.y) >> vec4<u32>(2u);
}

fn outputs_at(output: u32) -> vec4<u32> {
    let outputs = vec4<u32>(output, output + 1u, output + 2u, output + 3u);
    return min(outputs, vec4<u32>(params.outputs - 1u)) * (params.inputs / 4u);
}

fn store(row: u32, output: u32, product: f32) {
    var value = product * params.matrix_scale;
    if (params.biased == 1u) {
        value += bias[params.bias.x + params.first + output];
    }
    let at = params.out.x + row * params.out.y + params.first + output;
    if (params.accumulate == 1u) {
        value = out[at] + params.scale * value;
    }
    out[at] = value;
}

@compute @workgroup_size(16)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    let row = i % params.row_blocks * ROWS;
    let output = i / params.row_blocks * 128u + lane * 8u;
    if (output >= params.outputs) {
        return;
    }
    var sums = products(
        params.inputs / 4u, rows_at(row), rows_at(row + 4u), outputs_at(output), outputs_at(output + 4u),
    );
    let rows = min(ROWS, params.rows - row);
    let outputs = min(8u, params.outputs - output);
    // Loops, not sixteen stores written out: an adapter that compiles on the processor does so in a tenth of the time.
    for (var r = 0u; r < rows; r++) {
        for (var o = 0u; o < outputs; o++) {
            store(row + r, output + o, sums[2u * r + o / 4u][o % 4u]);
        }
    }
}
