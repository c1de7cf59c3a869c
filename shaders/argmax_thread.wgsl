// out[r] = index of the largest x[r], ties to the lowest index, as in argmax.wgsl, without barriers: for software adapters.
//
// `main`: one invocation a (row, part of its columns), 8 a workgroup, leaves the part's best key and place. `join`: one
// invocation a row, 8 a workgroup, chooses among its parts.
struct Params { x: vec2<u32>, out: vec2<u32>, rows: u32, cols: u32, parts: u32, width: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>; // [rows, cols] f32, or [rows * parts, 2] keys and places
@group(0) @binding(2) var<storage, read_write> out: array<u32>; // [rows, 1], or [rows * parts, 2]

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 8u + lane;
    if (i >= params.rows * params.parts) {
        return;
    }
    let at = params.x.x + i / params.parts * params.x.y;
    let first = i % params.parts * params.width;
    let end = min(first + params.width, params.cols);
    var place = first;
    var best = order_key(bitcast<f32>(x[at + first]));
    for (var c = first + 1u; c < end; c++) {
        let key = order_key(bitcast<f32>(x[at + c]));
        if (key > best) {
            best = key;
            place = c;
        }
    }
    out[2u * i] = best;
    out[2u * i + 1u] = place;
}

@compute @workgroup_size(8)
fn join(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat(group, count) * 8u + lane;
    if (row >= params.rows) {
        return;
    }
    // Parts come in the order of their columns: of equals the first is the lowest.
    let first = 2u * row * params.parts;
    var best = x[first];
    var place = x[first + 1u];
    for (var part = 1u; part < params.parts; part++) {
        let key = x[first + 2u * part];
        if (key > best) {
            best = key;
            place = x[first + 2u * part + 1u];
        }
    }
    out[params.out.x + row * params.out.y] = place;
}
