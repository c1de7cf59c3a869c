// out[row] = sum over choices of weights[row, choice] * x[row * top_k + choice], or out += scale * that sum.
// One invocation an element; 256 elements a workgroup.
struct Params {
    x: vec2<u32>, weights: vec2<u32>, out: vec2<u32>,
    rows: u32, cols: u32, top_k: u32, accumulate: u32, scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows * top_k, cols]
@group(0) @binding(2) var<storage, read> weights: array<f32>; // [rows, top_k]
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
    var sum = 0.0;
    for (var choice = 0u; choice < params.top_k; choice++) {
        let pair = row * params.top_k + choice;
        sum += weights[params.weights.x + row * params.weights.y + choice] * x[params.x.x + pair * params.x.y + col];
    }
    let at = params.out.x + row * params.out.y + col;
    if (params.accumulate == 1u) {
        out[at] = out[at] + params.scale * sum;
    } else {
        out[at] = sum;
    }
}
