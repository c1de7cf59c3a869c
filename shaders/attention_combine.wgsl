// Joins the parts that `attention` left for each (row, head). One invocation an element of out; 64 a workgroup.
struct Params {
    places: vec2<u32>, out: vec2<u32>,
    rows: u32, heads: u32, head_dim: u32, parts: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partials: array<f32>; // [rows * heads * parts, 2 + head_dim]
@group(0) @binding(2) var<storage, read> places: array<u32>; // [rows, 4]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, heads * head_dim]

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 64u + lane;
    let width = params.heads * params.head_dim;
    if (i >= params.rows * width) {
        return;
    }
    let row = i / width;
    if (places[params.places.x + row * params.places.y] == 0xffffffffu) {
        return;
    }
    let column = i % params.head_dim;
    let first = i / params.head_dim * params.parts;
    let stride = params.head_dim + 2u;
    var largest = partials[first * stride];
    for (var p = 1u; p < params.parts; p++) {
        largest = max(largest, partials[(first + p) * stride]);
    }
    var total = 0.0;
    var sum = 0.0;
    for (var p = 0u; p < params.parts; p++) {
        let at = (first + p) * stride;
        let weight = exp(partials[at] - largest);
        total += weight * partials[at + 1u];
        sum += weight * partials[at + 2u + column];
    }
    out[params.out.x + row * params.out.y + i % width] = sum / total;
}
