// out[r] = index of the largest x[r], ties to the lowest index. One workgroup of 256 a row.
struct Params { x: vec2<u32>, out: vec2<u32>, rows: u32, cols: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, cols]
@group(0) @binding(2) var<storage, read_write> out: array<u32>; // [rows, 1]

var<workgroup> keys: array<u32, 256>;
var<workgroup> places: array<u32, 256>;

@compute @workgroup_size(256)
fn main(
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
    for (var c = lane; c < params.cols; c += 256u) {
        let key = order_key(x[params.x.x + row * params.x.y + c]);
        if (key > best || place == 0xffffffffu) {
            best = key;
            place = c;
        }
    }
    keys[lane] = best;
    places[lane] = place;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let key = keys[lane + half];
            let other = places[lane + half];
            if (key > keys[lane] || (key == keys[lane] && other < places[lane])) {
                keys[lane] = key;
                places[lane] = other;
            }
        }
    }
    workgroupBarrier();
    if (lane == 0u) {
        out[params.out.x + row * params.out.y] = places[0];
    }
}
