// out = f(x), or f(gate) * x where GATED. One invocation an element; 256 elements a workgroup.
struct Params { x: vec2<u32>, gate: vec2<u32>, out: vec2<u32>, rows: u32, cols: u32, kind: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, cols]
@group(0) @binding(2) var<storage, read> gate: array<f32>; // [rows, cols]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, cols]

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
    let value = x[params.x.x + row * params.x.y + col];
    var result: f32;
    if (GATED == 1u) {
        result = pointwise(params.kind, gate[params.gate.x + row * params.gate.y + col]) * value;
    } else {
        result = pointwise(params.kind, value);
    }
    out[params.out.x + row * params.out.y + col] = result;
}
