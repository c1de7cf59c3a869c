// The products of common_vec for devices without subgroups: teams meet in workgroup memory, a row at a time.

var<workgroup> team_sums: array<vec4<f32>, THREADS>;
var<workgroup> square_sums: array<f32, THREADS>;

// The sum over the workgroup of what its invocations have; ends behind a barrier.
fn sum_squares(value: f32, lane: u32) {
    square_sums[lane] = value;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            square_sums[lane] += square_sums[lane + half];
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let width = THREADS / LANES * OUTS;
    let first = begin(flat(group, count), width);
    if (first == NONE) {
        return;
    }
    products(first + lane / LANES * OUTS, lane % LANES, lane);
    for (var r = 0u; r < ROWS; r++) {
        workgroupBarrier();
        team_sums[lane] = sums[r];
        var total = 0.0;
        if (NORMED == 1u) {
            sum_squares(squares[r], lane);
            total = square_sums[0];
            if (first == 0u && r < params.rows) {
                finish(r, total, lane, THREADS);
            }
        } else {
            workgroupBarrier();
        }
        if (lane < width && first + lane < params.outputs && r < params.rows) {
            var sum = 0.0;
            for (var k = 0u; k < LANES; k++) {
                sum += component(team_sums[lane / OUTS * LANES + k], lane % OUTS);
            }
            store(r, first + lane, sum, total);
        }
    }
}
