// out = weight * x / sqrt(mean over each group of x^2 + eps) as in rms_norm.wgsl, without barriers: for software adapters.
// One invocation a (row, group); 8 a workgroup.
struct Params {
    x: vec2<u32>, weight: vec2<u32>, out: vec2<u32>,
    rows: u32, groups: u32, width: u32, eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, groups * width]
@group(0) @binding(2) var<storage, read> weight: array<f32>; // [1, groups * width]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, groups * width]

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
    let source = params.x.x + row * params.x.y + first;
    let gain = params.weight.x + first;
    let target_row = params.out.x + row * params.out.y + first;
    // Two sums by turns: f32 keeps more of each.
    var even = 0.0;
    var odd = 0.0;
    for (var c = 0u; c + 1u < width; c += 2u) {
        let near = x[source + c];
        let far = x[source + c + 1u];
        even += near * near;
        odd += far * far;
    }
    if (width % 2u == 1u) {
        let last = x[source + width - 1u];
        even += last * last;
    }
    let factor = inverseSqrt((even + odd) / f32(width) + params.eps);
    for (var c = 0u; c < width; c++) {
        out[target_row + c] = x[source + c] * factor * weight[gain + c];
    }
}
