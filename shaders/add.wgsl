// out += scale * x. One invocation an element; 256 elements a workgroup.
struct Params { x: vec2<u32>, out: vec2<u32>, rows: u32, cols: u32, scale: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, cols]
@group(0) @binding(2) var<storage, read_write> out: array<f32>; // [rows, cols]

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
    let row = i / params.cols;
    let col = i % params.cols;
    let at = params.out.x + row * params.out.y + col;
    out[at] = out[at] + params.scale * x[params.x.x + row * params.x.y + col];
}
