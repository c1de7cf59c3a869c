// weight * norm(y * silu(z)), or weight * norm(y) * silu(z) where NORM_FIRST, as in gated_rms_norm.wgsl, without barriers:
// for software adapters. One invocation a (row, group), 8 a workgroup; `out` holds what is to be scaled between the passes.
struct Params {
    y: vec2<u32>, z: vec2<u32>, weight: vec2<u32>, out: vec2<u32>,
    rows: u32, groups: u32, width: u32, eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> y: array<f32>; // [rows, groups * width]
@group(0) @binding(2) var<storage, read> z: array<f32>; // [rows, groups * width]
@group(0) @binding(3) var<storage, read> weight: array<f32>; // [1, groups * width]
@group(0) @binding(4) var<storage, read_write> out: array<f32>; // [rows, groups * width]

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 8u + lane;
    if (i >= params.rows * params.groups) {
        return;
    }
    let width = params.width;
    let row = i / params.groups;
    let first = i % params.groups * width;
    let source = params.y.x + row * params.y.y + first;
    let gate = params.z.x + row * params.z.y + first;
    let gain = params.weight.x + first;
    let target_row = params.out.x + row * params.out.y + first;
    // Four sums by turns: f32 keeps more of each.
    var sums = vec4<f32>();
    for (var c = 0u; c < width; c++) {
        let value = y[source + c];
        let z_value = z[gate + c];
        let gated = value * z_value * sigmoid(z_value);
        let counted = select(gated, value, NORM_FIRST == 1u);
        sums = vec4<f32>(sums.yzw, sums.x + counted * counted);
        out[target_row + c] = gated;
    }
    let total = sums.x + sums.y + sums.z + sums.w;
    let factor = inverseSqrt(total / f32(width) + params.eps);
    for (var c = 0u; c < width; c++) {
        out[target_row + c] = out[target_row + c] * factor * weight[gain + c];
    }
}
