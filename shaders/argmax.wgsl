// out[r] = index of the largest x[r], ties to the lowest index.
//
// `main`: one workgroup of 256 a (row, part of its columns) leaves the part's best key and place, or, where a row is one
// part, the index. `join`: one workgroup of 256 a row chooses among its parts.
struct Params { x: vec2<u32>, out: vec2<u32>, rows: u32, cols: u32, parts: u32, width: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>; // [rows, cols] f32, or [rows * parts, 2] keys and places
@group(0) @binding(2) var<storage, read_write> out: array<u32>; // [rows, 1], or [rows * parts, 2]

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    if (i >= params.rows * params.parts) {
        return;
    }
    let row = i / params.parts;
    let first = i % params.parts * params.width;
    let end = min(first + params.width, params.cols);
    var best = 0u;
    var place = 0xffffffffu;
    for (var c = first + lane; c < end; c += 256u) {
        let key = order_key(bitcast<f32>(x[params.x.x + row * params.x.y + c]));
        if (key > best || place == 0xffffffffu) {
            best = key;
            place = c;
        }
    }
    reduce(lane, best, place);
    if (lane == 0u && params.parts == 1u) {
        out[params.out.x + row * params.out.y] = places[0];
    } else if (lane == 0u) {
        out[2u * i] = keys[0];
        out[2u * i + 1u] = places[0];
    }
}

@compute @workgroup_size(256)
fn join(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat(group, count);
    if (row >= params.rows) {
        return;
    }
    var best = 0u;
    var place = 0xffffffffu;
    for (var part = lane; part < params.parts; part += 256u) {
        let at = 2u * (row * params.parts + part);
        let key = x[at];
        let other = x[at + 1u];
        if (key > best || (key == best && other < place)) {
            best = key;
            place = other;
        }
    }
    reduce(lane, best, place);
    if (lane == 0u) {
        out[params.out.x + row * params.out.y] = places[0];
    }
}
