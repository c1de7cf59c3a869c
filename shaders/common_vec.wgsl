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
//
// LANES invocations share OUTS outputs (1 or 2). A unit of a narrow format meets many elements of x, so neighbouring
// invocations read x far apart: teams smaller than a subgroup meet in the same lines of the cache.

const NONE: u32 = 0xffffffffu;

// Sums for rows 0 to 3 and 4 to 7, of the first and of the second output.
struct Sums {
    a: vec4<f32>,
    a_more: vec4<f32>,
    b: vec4<f32>,
    b_more: vec4<f32>,
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

// A unit with the columns of a row from four `at`. Rows past the last repeat it; nobody stores them.
fn dot_unit(v: vec4<u32>, bytes: u32, any_row: u32, at: u32) -> f32 {
    let row = min(any_row, params.rows - 1u);
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

// A unit's products with rows 0 to 3; written out, so that no compiler keeps them in memory.
fn dot_rows(v: vec4<u32>, bytes: u32, at: u32) -> vec4<f32> {
    var r = vec4<f32>();
    r.x = dot_unit(v, bytes, 0u, at);
    if (ROWS > 1u) {
        r.y = dot_unit(v, bytes, 1u, at);
    }
    if (ROWS > 2u) {
        r.z = dot_unit(v, bytes, 2u, at);
        r.w = dot_unit(v, bytes, 3u, at);
    }
    return r;
}

// The same with rows 4 to 7.
fn dot_more(v: vec4<u32>, bytes: u32, at: u32) -> vec4<f32> {
    if (ROWS <= 4u) {
        return vec4<f32>();
    }
    return vec4<f32>(
        dot_unit(v, bytes, 4u, at),
        dot_unit(v, bytes, 5u, at),
        dot_unit(v, bytes, 6u, at),
        dot_unit(v, bytes, 7u, at),
    );
}

// Products of two neighbouring outputs over units lane, lane + LANES, ... The loads of a turn are in flight while the
// units of the turn before are used.
fn partial(output: u32, lane: u32) -> Sums {
    var s: Sums;
    let last = params.outputs - 1u;
    let first = unit_row(min(output, last));
    let second = unit_row(min(output + OUTS - 1u, last));
    let end = params.units - 1u;
    var near = min(lane, end);
    var far = min(lane + LANES, end);
    var w = weight[first + near];
    var w_far = weight[first + far];
    var w_bytes = block_bytes(first + near);
    var w_far_bytes = block_bytes(first + far);
    var v = w;
    var v_far = w;
    var v_bytes = 0u;
    var v_far_bytes = 0u;
    if (OUTS > 1u) {
        v = weight[second + near];
        v_far = weight[second + far];
        v_bytes = block_bytes(second + near);
        v_far_bytes = block_bytes(second + far);
    }
    for (var u = lane; u < params.units; u += 2u * LANES) {
        near = min(u + 2u * LANES, end);
        far = min(u + 3u * LANES, end);
        let next_w = weight[first + near];
        let next_w_far = weight[first + far];
        let next_w_bytes = block_bytes(first + near);
        let next_w_far_bytes = block_bytes(first + far);
        var next_v = next_w;
        var next_v_far = next_w;
        var next_v_bytes = 0u;
        var next_v_far_bytes = 0u;
        if (OUTS > 1u) {
            next_v = weight[second + near];
            next_v_far = weight[second + far];
            next_v_bytes = block_bytes(second + near);
            next_v_far_bytes = block_bytes(second + far);
        }
        s.a += dot_rows(w, w_bytes, u * FOURS);
        s.a_more += dot_more(w, w_bytes, u * FOURS);
        if (OUTS > 1u) {
            s.b += dot_rows(v, v_bytes, u * FOURS);
            s.b_more += dot_more(v, v_bytes, u * FOURS);
        }
        if (u + LANES < params.units) {
            let at = (u + LANES) * FOURS;
            s.a += dot_rows(w_far, w_far_bytes, at);
            s.a_more += dot_more(w_far, w_far_bytes, at);
            if (OUTS > 1u) {
                s.b += dot_rows(v_far, v_far_bytes, at);
                s.b_more += dot_more(v_far, v_far_bytes, at);
            }
        }
        w = next_w;
        w_far = next_w_far;
        w_bytes = next_w_bytes;
        w_far_bytes = next_w_far_bytes;
        v = next_v;
        v_far = next_v_far;
        v_bytes = next_v_bytes;
        v_far_bytes = next_v_far_bytes;
    }
    return s;
}

// The sum of row r of the first output (which 0) or the second.
fn sum_of(s: Sums, which: u32, r: u32) -> f32 {
    let low = select(s.a, s.b, which == 1u);
    let high = select(s.a_more, s.b_more, which == 1u);
    let four = select(low, high, r >= 4u);
    let two = select(four.xy, four.zw, (r & 2u) == 2u);
    return select(two.x, two.y, (r & 1u) == 1u);
}

// [ROWS, OUTS, 4 groups of 32 invocations and one of padding, so that the sums below do not meet in one bank]
var<workgroup> partials: array<f32, ROWS * OUTS * 132>;
var<workgroup> shares: array<f32, ROWS * 132>;

// One workgroup of 128 in teams of LANES; one barrier.
@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let width = 128u / LANES * OUTS;
    let first = begin(flat(group, count), width);
    if (first == NONE) {
        return;
    }
    let sums = partial(first + lane / LANES * OUTS, lane % LANES);
    let own = lane + lane / 32u;
    for (var r = 0u; r < ROWS; r++) {
        for (var o = 0u; o < OUTS; o++) {
            partials[(r * OUTS + o) * 132u + own] = sum_of(sums, o, r);
        }
        if (NORMED == 1u) {
            shares[r * 132u + own] = share(min(r, params.rows - 1u), lane % 32u, 32u);
        }
    }
    workgroupBarrier();
    for (var i = lane; i < width * min(ROWS, params.rows); i += 128u) {
        let row = i / width;
        let which = i % width;
        var sum = 0.0;
        var extra = 0.0;
        for (var k = 0u; k < LANES; k++) {
            let other = which / OUTS * LANES + k;
            sum += partials[(row * OUTS + which % OUTS) * 132u + other + other / 32u];
        }
        if (NORMED == 1u) {
            for (var k = 0u; k < 32u; k++) {
                extra += shares[row * 132u + k];
            }
        }
        if (first + which < params.outputs) {
            store(row, first + which, sum, extra);
        }
    }
}
