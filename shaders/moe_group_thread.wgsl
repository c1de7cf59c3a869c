// A stable counting sort of (row, choice) pairs by expert as in moe_group.wgsl, without barriers: for software adapters.
// One invocation an expert, 16 a workgroup: it counts the pairs before its own, then lists its own.
struct Params { ids: vec2<u32>, order: vec2<u32>, offsets: vec2<u32>, rows: u32, top_k: u32, experts: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>; // [rows, top_k]
@group(0) @binding(2) var<storage, read_write> order: array<u32>; // [rows * top_k, 1]
@group(0) @binding(3) var<storage, read_write> offsets: array<u32>; // [experts + 1, 1]

@compute @workgroup_size(16)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let expert = flat(group, count) * 16u + lane;
    if (expert >= params.experts) {
        return;
    }
    let top_k = params.top_k;
    var place = 0u;
    for (var row = 0u; row < params.rows; row++) {
        let at = params.ids.x + row * params.ids.y;
        for (var k = 0u; k < top_k; k++) {
            place += u32(ids[at + k] < expert);
        }
    }
    offsets[params.offsets.x + expert * params.offsets.y] = place;
    if (expert + 1u == params.experts) {
        offsets[params.offsets.x + params.experts * params.offsets.y] = params.rows * top_k;
    }
    for (var row = 0u; row < params.rows; row++) {
        let at = params.ids.x + row * params.ids.y;
        for (var k = 0u; k < top_k; k++) {
            if (ids[at + k] == expert) {
                order[params.order.x + place * params.order.y] = row * top_k + k;
                place += 1u;
            }
        }
    }
}
