// out = x weight^T + bias, or out += scale * that, for many rows of whole 16-byte units, without barriers: for software
// adapters, which pay for them by the workgroup.
//
// One workgroup of 64 a block of 16 rows by 64 outputs of one piece of the weight; an invocation has 4 x 4 of them, so
// that four elements of x or of the weight are loaded and unpacked once for 16 products. f32 accumulation.
struct Params {
    x: vec2<u32>, bias: vec2<u32>, out: vec2<u32>,
    rows: u32, units: u32, outputs: u32, first: u32, row_blocks: u32, biased: u32, accumulate: u32,
    scale: f32, matrix_scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>; // [outputs, units]
@group(0) @binding(2) var<storage, read> scales: array<u32>; // [outputs, 2 * units] bytes, nvfp4 alone
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>; // [rows, units * FOURS]
@group(0) @binding(4) var<storage, read> bias: array<f32>; // [1, all outputs]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, all outputs]

// Four `k` of a unit of the weight.
fn four_of(at: u32, k: u32) -> vec4<f32> {
    let v = weight[at];
    if (FORMAT == F32) {
        return bitcast<vec4<f32>>(v);
    }
    if (FORMAT == FP8) {
        return e4m3_four(v[k]);
    }
    if (FORMAT == NVFP4) {
        let eight = e2m1_eight(v[k >> 1u]);
        let byte = (scales[at >> 1u] >> ((at & 1u) * 16u + (k >> 2u) * 8u)) & 0xffu;
        return select(eight[0], eight[1], (k & 1u) == 1u) * block_scale(byte);
    }
    let words = select(v.xy, v.zw, k == 1u);
    return vec4<f32>(half_pair(words.x), half_pair(words.y));
}

// Where a row of x begins, in fours; rows past the last repeat it, nobody stores them.
fn row_at(row: u32) -> u32 {
    return (params.x.x + min(row, params.rows - 1u) * params.x.y) >> 2u;
}

fn unit_row(output: u32) -> u32 {
    return min(output, params.outputs - 1u) * params.units;
}

fn store(row: u32, output: u32, product: f32) {
    if (row >= params.rows || output >= params.outputs) {
        return;
    }
    var value = product * params.matrix_scale;
    if (params.biased == 1u) {
        value += bias[params.bias.x + params.first + output];
    }
    let at = params.out.x + row * params.out.y + params.first + output;
    if (params.accumulate == 1u) {
        out[at] = out[at] + params.scale * value;
    } else {
        out[at] = value;
    }
}

fn store_four(row: u32, output: u32, sums: vec4<f32>) {
    store(row, output, sums.x);
    store(row, output + 1u, sums.y);
    store(row, output + 2u, sums.z);
    store(row, output + 3u, sums.w);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    let row = i % params.row_blocks * 16u + (lane >> 4u) * 4u;
    let output = i / params.row_blocks * 64u + (lane & 15u) * 4u;
    if (row >= params.rows || output >= params.outputs) {
        return;
    }
    let x0 = row_at(row);
    let x1 = row_at(row + 1u);
    let x2 = row_at(row + 2u);
    let x3 = row_at(row + 3u);
    let w0 = unit_row(output);
    let w1 = unit_row(output + 1u);
    let w2 = unit_row(output + 2u);
    let w3 = unit_row(output + 3u);
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    for (var u = 0u; u < params.units; u++) {
        for (var k = 0u; k < FOURS; k++) {
            // Columns down, outputs across: a row of x times it is four products.
            let w = transpose(mat4x4<f32>(
                four_of(w0 + u, k), four_of(w1 + u, k), four_of(w2 + u, k), four_of(w3 + u, k),
            ));
            let at = u * FOURS + k;
            s0 += w * x[x0 + at];
            s1 += w * x[x1 + at];
            s2 += w * x[x2 + at];
            s3 += w * x[x3 + at];
        }
    }
    store_four(row, output, s0);
    store_four(row + 1u, output, s1);
    store_four(row + 2u, output, s2);
    store_four(row + 3u, output, s3);
}
