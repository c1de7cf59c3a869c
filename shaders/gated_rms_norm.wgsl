// weight * norm(y * silu(z)), or weight * norm(y) * silu(z) where NORM_FIRST; statistics over each group, in f32.
// One workgroup of THREADS a (row, group); see common_norm.wgsl for the sum.
struct Params {
    y: vec2<u32>, z: vec2<u32>, weight: vec2<u32>, out: vec2<u32>,
    rows: u32, groups: u32, width: u32, eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> y: array<f32>; // [rows, groups * width]
@group(0) @binding(2) var<storage, read> z: array<f32>; // [rows, groups * width]
@group(0) @binding(3) var<storage, read> weight: array<f32>; // [1, groups * width]
@group(0) @binding(4) var<storage, read_write> out: array<f32>; // [rows, groups * width]

var<private> gate_at: u32;

fn squared(at: u32, col: u32) -> f32 {
    var value = y[at + col];
    if (NORM_FIRST == 0u) {
        value *= pointwise(1u, z[gate_at + col]);
    }
    return value * value;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    if (i >= params.rows * params.groups) {
        return;
    }
    let row = i / params.groups;
    let first = i % params.groups * params.width;
    let source = params.y.x + row * params.y.y + first;
    let gate = params.z.x + row * params.z.y + first;
    gate_at = gate;
    let total = sum_of_squares(source, params.width, lane);
    let factor = inverseSqrt(total / f32(params.width) + params.eps);
    let target_row = params.out.x + row * params.out.y + first;
    for (var c = lane; c < params.width; c += THREADS) {
        let gated = y[source + c] * pointwise(1u, z[gate + c]);
        out[target_row + c] = gated * factor * weight[params.weight.x + first + c];
    }
}
