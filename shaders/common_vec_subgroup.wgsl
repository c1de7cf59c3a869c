// The products of common_vec without workgroup memory and barriers: the invocations of a team lie in one subgroup.
// One workgroup of 128 has 128 / LANES * OUTS outputs. For devices whose subgroups all have SUBGROUP lanes.

fn team_sum(value: f32) -> f32 {
    var sum = value;
    for (var m = LANES / 2u; m > 0u; m /= 2u) {
        sum += subgroupShuffleXor(sum, m);
    }
    return sum;
}

@compute @workgroup_size(128)
fn subgroup(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_id) which: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let first = begin(flat(group, count), 128u / LANES * OUTS);
    if (first == NONE) {
        return;
    }
    let place = which * SUBGROUP + lane;
    let own = first + place / LANES * OUTS;
    let sums = partial(own, place % LANES);
    for (var r = 0u; r < ROWS; r++) {
        let a = team_sum(sum_of(sums, 0u, r));
        var b = 0.0;
        if (OUTS > 1u) {
            b = team_sum(sum_of(sums, 1u, r));
        }
        var extra = 0.0;
        if (NORMED == 1u) {
            extra = subgroupAdd(share(min(r, params.rows - 1u), lane, SUBGROUP));
        }
        let output = own + place % LANES;
        if (place % LANES < OUTS && output < params.outputs && r < params.rows) {
            store(r, output, select(a, b, output > own), extra);
        }
    }
}
