// The products of common_vec for software adapters, which pay for barriers: one invocation an output, 64 a workgroup,
// x read where it lies.

// Eight columns of a row, from four `at`, with a word of E2M1 codes, times 2^-14.
fn dot_eight(word: u32, row: u32, at: u32) -> f32 {
    let eight = e2m1_eight(word);
    return dot(eight[0], entering(row, at)) + dot(eight[1], entering(row, at + 1u));
}

fn entering(row: u32, at: u32) -> vec4<f32> {
    if (NORMED == 1u) {
        return x_four(row, at) * gain(at);
    }
    return x_four(row, at);
}

// A unit with the columns of a row from four `at`. Rows past the last repeat it; nobody stores them.
fn dot_unit(v: vec4<u32>, bytes: u32, any_row: u32, at: u32) -> f32 {
    let row = min(any_row, params.rows - 1u);
    if (FORMAT == F32) {
        return dot(bitcast<vec4<f32>>(v), entering(row, at));
    }
    if (FORMAT == NVFP4) {
        let low = dot_eight(v.x, row, at) + dot_eight(v.y, row, at + 2u);
        let high = dot_eight(v.z, row, at + 4u) + dot_eight(v.w, row, at + 6u);
        return low * block_scale(bytes & 0xffu) + high * block_scale(bytes >> 8u);
    }
    if (FORMAT == FP8) {
        return dot(e4m3_four(v.x), entering(row, at)) + dot(e4m3_four(v.y), entering(row, at + 1u))
            + dot(e4m3_four(v.z), entering(row, at + 2u)) + dot(e4m3_four(v.w), entering(row, at + 3u));
    }
    return dot(vec4<f32>(half_pair(v.x), half_pair(v.y)), entering(row, at))
        + dot(vec4<f32>(half_pair(v.z), half_pair(v.w)), entering(row, at + 1u));
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

fn squares_of(row: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < params.units * FOURS; i++) {
        let four = x_four(row, i);
        sum += dot(four, four);
    }
    return sum;
}

@compute @workgroup_size(64)
fn thread(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = begin(flat(group, count), 64u);
    if (first == NONE) {
        return;
    }
    let output = first + lane;
    let at = unit_row(min(output, params.outputs - 1u));
    var low = vec4<f32>();
    var high = vec4<f32>();
    for (var u = 0u; u < params.units; u++) {
        let v = weight[at + u];
        let bytes = block_bytes(at + u);
        low += dot_rows(v, bytes, u * FOURS);
        high += dot_more(v, bytes, u * FOURS);
    }
    for (var r = 0u; r < min(ROWS, params.rows); r++) {
        var total = 0.0;
        if (NORMED == 1u) {
            total = squares_of(r);
            if (first == 0u) {
                finish(r, total, lane, 64u);
            }
        }
        if (output < params.outputs) {
            let four = select(low, high, r >= 4u);
            let two = select(four.xy, four.zw, (r & 2u) == 2u);
            store(r, output, select(two.x, two.y, (r & 1u) == 1u), total);
        }
    }
}
