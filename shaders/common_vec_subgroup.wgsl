// The products of common_vec with one subgroup of SUBGROUP lanes for OUTS outputs: no workgroup memory, no barrier.
// One workgroup of 128 has 128 / SUBGROUP * OUTS outputs. For devices whose subgroups all have one size.

@compute @workgroup_size(128)
fn subgroup(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_id) which: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let first = begin(flat(group, count), 128u / SUBGROUP * OUTS);
    if (first == NONE) {
        return;
    }
    let own = first + which * OUTS;
    var sums = partial(own, lane, SUBGROUP);
    for (var r = 0u; r < ROWS; r++) {
        let a = subgroupAdd(sums.a[r]);
        var b = 0.0;
        if (OUTS > 1u) {
            b = subgroupAdd(sums.b[r]);
        }
        var extra = 0.0;
        if (NORMED == 1u) {
            extra = subgroupAdd(share(min(r, params.rows - 1u), lane, SUBGROUP));
        }
        if (lane < OUTS && own + lane < params.outputs && r < params.rows) {
            store(r, own + lane, select(a, b, lane == 1u), extra);
        }
    }
}
