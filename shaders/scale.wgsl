// x *= factor, in place. One invocation an element; 256 elements a workgroup.
struct Params { x: vec2<u32>, rows: u32, cols: u32, factor: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>; // [rows, cols]

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
    let at = params.x.x + i / params.cols * params.x.y + i % params.cols;
    x[at] = x[at] * params.factor;
}
