// The products of moe_matmul_vec with one subgroup of SUBGROUP lanes an output: no workgroup memory, no barrier.
// One workgroup of 128 has 128 / SUBGROUP outputs of one pair. For devices whose subgroups all have one size.

@compute @workgroup_size(128)
fn subgroup(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_id) which: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let i = flat(group, count);
    let width = 128u / SUBGROUP;
    let blocks = (params.outputs + width - 1u) / width;
    let pair = i / blocks;
    if (pair >= params.pairs) {
        return;
    }
    // Wraps to a large number below the piece.
    if (expert_of(pair) - params.first >= params.count) {
        return;
    }
    let own = i % blocks * width + which;
    let total = subgroupAdd(partial(pair, min(own, params.outputs - 1u), lane, SUBGROUP));
    if (lane == 0u && own < params.outputs) {
        store(pair, own, total);
    }
}
