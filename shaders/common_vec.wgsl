// Products for few rows: ROWS of them at most (1 to 8), each output's row of the weight read once for all, in whole
// 16-byte units. f32 accumulation.
//
// The shader that includes this binds `weight` (units) and `scales` (words), has `rows`, `units` and `outputs` in its
// parameters, and defines NORMED and
//   begin(i, width): first output of workgroup i, whose workgroups have `width` outputs each, or NONE;
//   unit_row(output): where the output's row of the weight begins, in units;
//   x_four(row, col): four elements of a row of x;
//   share(row, lane, step): the lane's part of what `store` gets beside the product, where NORMED is 1;
//   store(row, output, product, extra).
// An invocation has OUTS outputs (1 or 2), so that elements of x are loaded once for both, and two units of each in
// flight.

const NONE: u32 = 0xffffffffu;

// Sums for each row, of the first and of the second output.
struct Sums {
    a: array<f32, 8>,
    b: array<f32, 8>,
}

// E4M3 scales of the two blocks of a unit.
fn block_bytes(unit: u32) -> u32 {
    if (FORMAT == NVFP4) {
        return (scales[unit >> 1u] >> ((unit & 1u) * 16u)) & 0xffffu;
    }
    return 0u;
}

// Eight columns of a row, from four `at`, with a word of E2M1 codes, times 2^-14.
fn dot_eight(word: u32, row: u32, at: u32) -> f32 {
    let eight = e2m1_eight(word);
    return dot(eight[0], x_four(row, at)) + dot(eight[1], x_four(row, at + 1u));
}

// A unit with the columns of a row from four `at`.
fn dot_unit(v: vec4<u32>, bytes: u32, row: u32, at: u32) -> f32 {
    if (FORMAT == F32) {
        return dot(bitcast<vec4<f32>>(v), x_four(row, at));
    }
    if (FORMAT == NVFP4) {
        let low = dot_eight(v.x, row, at) + dot_eight(v.y, row, at + 2u);
        let high = dot_eight(v.z, row, at + 4u) + dot_eight(v.w, row, at + 6u);
        return low * block_scale(bytes & 0xffu) + high * block_scale(bytes >> 8u);
    }
    if (FORMAT == FP8) {
        return dot(e4m3_four(v.x), x_four(row, at)) + dot(e4m3_four(v.y), x_four(row, at + 1u))
            + dot(e4m3_four(v.z), x_four(row, at + 2u)) + dot(e4m3_four(v.w), x_four(row, at + 3u));
    }
    return dot(vec4<f32>(half_pair(v.x), half_pair(v.y)), x_four(row, at))
        + dot(vec4<f32>(half_pair(v.z), half_pair(v.w)), x_four(row, at + 1u));
}

// Adds a unit's products to the sums of every row. Rows past the last repeat it; nobody stores them. Written out, so
// that no compiler keeps the sums in memory.
fn add_unit(sums: ptr<function, array<f32, 8>>, v: vec4<u32>, bytes: u32, unit: u32) {
    let at = unit * FOURS;
    let last = params.rows - 1u;
    (*sums)[0] += dot_unit(v, bytes, 0u, at);
    if (ROWS > 1u) {
        (*sums)[1] += dot_unit(v, bytes, min(1u, last), at);
    }
    if (ROWS > 2u) {
        (*sums)[2] += dot_unit(v, bytes, min(2u, last), at);
        (*sums)[3] += dot_unit(v, bytes, min(3u, last), at);
    }
    if (ROWS > 4u) {
        (*sums)[4] += dot_unit(v, bytes, min(4u, last), at);
        (*sums)[5] += dot_unit(v, bytes, min(5u, last), at);
        (*sums)[6] += dot_unit(v, bytes, min(6u, last), at);
        (*sums)[7] += dot_unit(v, bytes, min(7u, last), at);
    }
}

// Products of two neighbouring outputs over units lane, lane + step, ... All loads of a turn come before their use.
fn partial(output: u32, lane: u32, step: u32) -> Sums {
    var a: array<f32, 8>;
    var b: array<f32, 8>;
    let last = params.outputs - 1u;
    let first = unit_row(min(output, last));
    let second = unit_row(min(output + OUTS - 1u, last));
    for (var u = lane; u < params.units; u += 2u * step) {
        let far = min(u + step, params.units - 1u);
        let w = weight[first + u];
        let w_far = weight[first + far];
        var v = vec4<u32>();
        var v_far = vec4<u32>();
        if (OUTS > 1u) {
            v = weight[second + u];
            v_far = weight[second + far];
        }
        add_unit(&a, w, block_bytes(first + u), u);
        if (OUTS > 1u) {
            add_unit(&b, v, block_bytes(second + u), u);
        }
        if (u + step < params.units) {
            add_unit(&a, w_far, block_bytes(first + far), far);
            if (OUTS > 1u) {
                add_unit(&b, v_far, block_bytes(second + far), far);
            }
        }
    }
    return Sums(a, b);
}

// [ROWS, OUTS, 4 groups of 32 invocations and one of padding, so that the sums below do not meet in one bank]
var<workgroup> partials: array<f32, ROWS * OUTS * 132>;
var<workgroup> shares: array<f32, ROWS * 132>;

// One workgroup of 128: four groups of 32 invocations with OUTS outputs each; one barrier.
@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = begin(flat(group, count), 4u * OUTS);
    if (first == NONE) {
        return;
    }
    var sums = partial(first + lane / 32u * OUTS, lane % 32u, 32u);
    for (var r = 0u; r < ROWS; r++) {
        let at = lane + lane / 32u;
        partials[r * OUTS * 132u + at] = sums.a[r];
        if (OUTS > 1u) {
            partials[(r * OUTS + OUTS - 1u) * 132u + at] = sums.b[r];
        }
        if (NORMED == 1u) {
            shares[r * 132u + at] = share(min(r, params.rows - 1u), lane % 32u, 32u);
        }
    }
    workgroupBarrier();
    let row = lane / (4u * OUTS);
    let which = lane % (4u * OUTS);
    if (row < params.rows && row < ROWS && first + which < params.outputs) {
        var sum = 0.0;
        var extra = 0.0;
        for (var k = 0u; k < 32u; k++) {
            sum += partials[(row * OUTS + which % OUTS) * 132u + which / OUTS * 33u + k];
            if (NORMED == 1u) {
                extra += shares[row * 132u + which / OUTS * 33u + k];
            }
        }
        store(row, first + which, sum, extra);
    }
}

// One invocation an output, 64 a workgroup, no barrier: for software adapters, which pay for barriers.
@compute @workgroup_size(64)
fn thread(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = begin(flat(group, count), 64u);
    if (first == NONE || first + lane >= params.outputs) {
        return;
    }
    var sums = partial(first + lane, 0u, 1u);
    for (var r = 0u; r < min(ROWS, params.rows); r++) {
        var extra = 0.0;
        if (NORMED == 1u) {
            extra = share(r, 0u, 1u);
        }
        store(r, first + lane, sums.a[r], extra);
    }
}
