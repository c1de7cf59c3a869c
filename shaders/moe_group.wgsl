// A stable counting sort of (row, choice) pairs by expert: `order` lists the pairs by expert, `offsets` where each starts.
// One workgroup of 256 an expert: each invocation counts a run of the pairs, sums before it give its places. The pairs are
// read twice by every workgroup; they are few against the products that follow.
struct Params { ids: vec2<u32>, order: vec2<u32>, offsets: vec2<u32>, rows: u32, top_k: u32, experts: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>; // [rows, top_k]
@group(0) @binding(2) var<storage, read_write> order: array<u32>; // [rows * top_k, 1]
@group(0) @binding(3) var<storage, read_write> offsets: array<u32>; // [experts + 1, 1]

var<workgroup> below: array<u32, 256>; // pairs of lower experts in each run
var<workgroup> equal: array<u32, 256>; // pairs of this expert in each run

fn expert_of(pair: u32) -> u32 {
    return ids[params.ids.x + pair / params.top_k * params.ids.y + pair % params.top_k];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let expert = flat(group, count);
    if (expert >= params.experts) {
        return;
    }
    let pairs = params.rows * params.top_k;
    let run = (pairs + 255u) / 256u;
    let start = min(lane * run, pairs);
    let end = min(start + run, pairs);
    var lower = 0u;
    var own = 0u;
    for (var pair = start; pair < end; pair++) {
        let id = expert_of(pair);
        lower += u32(id < expert);
        own += u32(id == expert);
    }
    below[lane] = lower;
    equal[lane] = own;
    workgroupBarrier();
    var first = 0u;
    var place = 0u;
    for (var l = 0u; l < 256u; l++) {
        first += below[l];
        if (l < lane) {
            place += equal[l];
        }
    }
    place += first;
    for (var pair = start; pair < end; pair++) {
        if (expert_of(pair) == expert) {
            order[params.order.x + place * params.order.y] = pair;
            place += 1u;
        }
    }
    if (lane == 0u) {
        offsets[params.offsets.x + expert * params.offsets.y] = first;
        if (expert + 1u == params.experts) {
            offsets[params.offsets.x + params.experts * params.offsets.y] = pairs;
        }
    }
}
