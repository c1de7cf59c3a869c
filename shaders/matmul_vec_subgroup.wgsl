// The products of matmul_vec with one subgroup of SUBGROUP lanes an output: no workgroup memory, no barrier.
// One workgroup of 128 has 128 / SUBGROUP outputs. For devices whose subgroups all have one size.

@compute @workgroup_size(128)
fn subgroup(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_id) which: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let own = flat(group, count) * (128u / SUBGROUP) + which;
    var sums = partial(min(own, params.outputs - 1u), lane, SUBGROUP);
    for (var r = 0u; r < ROWS; r++) {
        let total = subgroupAdd(sums[r]);
        if (lane == 0u && own < params.outputs && r < params.rows) {
            store(r, params.first + own, total);
        }
    }
}
