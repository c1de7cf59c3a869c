// The products of common_vec where the invocations of a team lie in one subgroup. One workgroup has
// THREADS / LANES * OUTS outputs; those behind the last are left to `spare(i, width, which, place)`. For devices whose
// subgroups all have SUBGROUP lanes.

var<private> place_in_subgroup: u32;

// Squares of a row by subgroup.
var<workgroup> square_sums: array<f32, ROWS * THREADS / SUBGROUP>;

fn team_sums(value: vec4<f32>) -> vec4<f32> {
    var sum = value;
    for (var m = LANES / 2u; m > 0u; m /= 2u) {
        sum += subgroupShuffleXor(sum, m);
    }
    return sum;
}

@compute @workgroup_size(THREADS)
fn subgroup(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_id) which: u32,
    @builtin(subgroup_invocation_id) place: u32,
) {
    let lane = which * SUBGROUP + place;
    place_in_subgroup = place;
    let i = flat(group, count);
    let width = THREADS / LANES * OUTS;
    let first = begin(i, width);
    if (first == NONE) {
        spare(i, width, which, place);
        return;
    }
    let own = first + lane / LANES * OUTS;
    let part = lane % LANES;
    let stores = part < OUTS && own + part < outputs_here();
    products(own, part, lane);
    if (NORMED == 1u) {
        for (var r = 0u; r < ROWS; r++) {
            let total = subgroupAdd(squares[r]);
            if (place == 0u) {
                square_sums[r * THREADS / SUBGROUP + which] = total;
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < ROWS; r++) {
        let four = team_sums(sums[r]);
        var total = 0.0;
        if (NORMED == 1u) {
            for (var k = 0u; k < THREADS / SUBGROUP; k++) {
                total += square_sums[r * THREADS / SUBGROUP + k];
            }
            if (first == 0u && r < params.rows) {
                finish(r, total, lane, THREADS);
            }
        }
        if (stores && r < params.rows) {
            store(r, own + part, component(four, part), total);
        }
    }
}
