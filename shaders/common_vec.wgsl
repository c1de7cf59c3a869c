// Products for few rows: ROWS of them at most (1 to 8), each output's row of the weight read once for all, in whole
// 16-byte units. f32 accumulation.
//
// LANES invocations share OUTS outputs (1, 2 or 4) and take every LANES-th unit of their rows. A unit of a narrow format
// meets many elements of x, so x is staged in workgroup memory, CHUNK units at a time, its fours in an order in which
// neighbouring invocations read neighbouring places; and a four of x that was read serves all OUTS outputs.
//
// The shader that includes this binds `weight` (units) and `scales` (words), has `rows`, `units` and `outputs` in its
// parameters, and defines NORMED and
//   begin(i, width): first output of workgroup i, whose workgroups have `width` outputs each, or NONE;
//   unit_row(output): where the output's row of the weight begins, in units;
//   x_four(row, col): four elements of a row of x;
//   gain(col): where NORMED is 1, what four elements of x are multiplied by on their way;
//   store(row, output, product, squares): takes a product and, where NORMED is 1, the sum of squares of the row of x;
//   finish(row, squares, lane, step): what the first workgroup does beside, where NORMED is 1.

const NONE: u32 = 0xffffffffu; // a workgroup without outputs

// E4M3 scales of the two blocks of a unit.
fn block_bytes(unit: u32) -> u32 {
    if (FORMAT == NVFP4) {
        return (scale_word(unit >> 1u) >> ((unit & 1u) * 16u)) & 0xffffu;
    }
    return 0u;
}

// Units of OUTS outputs at one place of their rows, and the E4M3 scales of their two blocks.
struct Units {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
    bytes: vec4<u32>,
}

// One more than an even number: fours of one unit lie in different banks.
const PITCH: u32 = CHUNK + 1u;

var<workgroup> staged: array<vec4<f32>, ROWS * FOURS * PITCH>; // [rows, fours of a unit, units of the chunk]
var<private> sums: array<vec4<f32>, ROWS>; // of the outputs
var<private> block_sums: array<vec4<f32>, ROWS>; // of the block at hand
var<private> squares: array<f32, ROWS>; // of what the invocation staged

fn load(rows: vec4<u32>, u: u32) -> Units {
    var v: Units;
    let at = rows + u;
    v.a = unit_at(at.x);
    v.bytes.x = block_bytes(at.x);
    if (OUTS > 1u) {
        v.b = unit_at(at.y);
        v.bytes.y = block_bytes(at.y);
    }
    if (OUTS > 2u) {
        v.c = unit_at(at.z);
        v.d = unit_at(at.w);
        v.bytes.z = block_bytes(at.z);
        v.bytes.w = block_bytes(at.w);
    }
    return v;
}

// Adds a four of every output times the four of x that is staged `at`. Sums written out, so that each is one
// multiply-add.
fn add_four(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, at: u32) {
    for (var r = 0u; r < ROWS; r++) {
        let x = staged[r * FOURS * PITCH + at];
        var sum = block_sums[r];
        sum.x += a.x * x.x;
        sum.x += a.y * x.y;
        sum.x += a.z * x.z;
        sum.x += a.w * x.w;
        if (OUTS > 1u) {
            sum.y += b.x * x.x;
            sum.y += b.y * x.y;
            sum.y += b.z * x.z;
            sum.y += b.w * x.w;
        }
        if (OUTS > 2u) {
            sum.z += c.x * x.x;
            sum.z += c.y * x.y;
            sum.z += c.z * x.z;
            sum.z += c.w * x.w;
            sum.w += d.x * x.x;
            sum.w += d.y * x.y;
            sum.w += d.z * x.z;
            sum.w += d.w * x.w;
        }
        block_sums[r] = sum;
    }
}

fn add_eight(a: u32, b: u32, c: u32, d: u32, at: u32) {
    let wa = e2m1_eight(a);
    let wb = e2m1_eight(b);
    let wc = e2m1_eight(c);
    let wd = e2m1_eight(d);
    add_four(wa[0], wb[0], wc[0], wd[0], at);
    add_four(wa[1], wb[1], wc[1], wd[1], at + PITCH);
}

// Takes the sums of a block over, with its scales.
fn end_block(scale: vec4<f32>) {
    for (var r = 0u; r < ROWS; r++) {
        sums[r] += block_sums[r] * scale;
        block_sums[r] = vec4<f32>();
    }
}

fn block_scales(bytes: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(block_scale(bytes.x), block_scale(bytes.y), block_scale(bytes.z), block_scale(bytes.w));
}

fn half_four(a: u32, b: u32) -> vec4<f32> {
    return vec4<f32>(half_pair(a), half_pair(b));
}

fn add_fp8(a: u32, b: u32, c: u32, d: u32, at: u32) {
    add_four(e4m3_four(a), e4m3_four(b), e4m3_four(c), e4m3_four(d), at);
}

// A unit of every output with unit `u` of the chunk.
fn add_unit(v: Units, u: u32) {
    if (FORMAT == NVFP4) {
        add_eight(v.a.x, v.b.x, v.c.x, v.d.x, u);
        add_eight(v.a.y, v.b.y, v.c.y, v.d.y, u + 2u * PITCH);
        end_block(block_scales(v.bytes & vec4<u32>(0xffu)));
        add_eight(v.a.z, v.b.z, v.c.z, v.d.z, u + 4u * PITCH);
        add_eight(v.a.w, v.b.w, v.c.w, v.d.w, u + 6u * PITCH);
        end_block(block_scales(v.bytes >> vec4<u32>(8u)));
        return;
    }
    if (FORMAT == F32) {
        add_four(
            bitcast<vec4<f32>>(v.a), bitcast<vec4<f32>>(v.b), bitcast<vec4<f32>>(v.c), bitcast<vec4<f32>>(v.d), u,
        );
    } else if (FORMAT == FP8) {
        add_fp8(v.a.x, v.b.x, v.c.x, v.d.x, u);
        add_fp8(v.a.y, v.b.y, v.c.y, v.d.y, u + PITCH);
        add_fp8(v.a.z, v.b.z, v.c.z, v.d.z, u + 2u * PITCH);
        add_fp8(v.a.w, v.b.w, v.c.w, v.d.w, u + 3u * PITCH);
    } else {
        add_four(
            half_four(v.a.x, v.a.y), half_four(v.b.x, v.b.y), half_four(v.c.x, v.c.y), half_four(v.d.x, v.d.y), u,
        );
        add_four(
            half_four(v.a.z, v.a.w), half_four(v.b.z, v.b.w), half_four(v.c.z, v.c.w), half_four(v.d.z, v.d.w),
            u + PITCH,
        );
    }
    end_block(vec4<f32>(1.0));
}

// Puts four `i` of the chunk, whose first is `first`, in its place.
fn put(r: u32, first: u32, i: u32, x: vec4<f32>) {
    var value = x;
    if (NORMED == 1u) {
        squares[r] += dot(x, x);
        value *= gain(first + i);
    }
    staged[(r * FOURS + i % FOURS) * PITCH + i / FOURS] = value;
}

// Stages the chunk from unit `chunk` of x, four loads of an invocation in flight. Rows past the last repeat it; nobody
// stores them.
fn stage(chunk: u32, lane: u32) {
    let first = chunk * FOURS;
    let width = min(CHUNK, params.units - chunk) * FOURS;
    let last = width - 1u;
    for (var r = 0u; r < ROWS; r++) {
        let row = min(r, params.rows - 1u);
        for (var i = lane; i < width; i += 4u * THREADS) {
            let near = x_four(row, first + i);
            let second = x_four(row, first + min(i + THREADS, last));
            let third = x_four(row, first + min(i + 2u * THREADS, last));
            let far = x_four(row, first + min(i + 3u * THREADS, last));
            put(r, first, i, near);
            if (i + THREADS < width) {
                put(r, first, i + THREADS, second);
            }
            if (i + 2u * THREADS < width) {
                put(r, first, i + 2u * THREADS, third);
            }
            if (i + 3u * THREADS < width) {
                put(r, first, i + 3u * THREADS, far);
            }
        }
    }
}

// Sums of the invocation's units with OUTS outputs from `own`; ends behind a barrier after the last staging. The loads
// of a turn are in flight while the units of the turn before are used.
fn products(own: u32, part: u32, lane: u32) {
    let most = outputs_here() - 1u;
    let rows = vec4<u32>(
        unit_row(min(own, most)), unit_row(min(own + 1u, most)),
        unit_row(min(own + 2u, most)), unit_row(min(own + 3u, most)),
    );
    let end = params.units - 1u;
    var near = load(rows, min(part, end));
    var far = near;
    if (DEPTH > 1u) {
        far = load(rows, min(part + LANES, end));
    }
    for (var chunk = 0u; chunk < params.units; chunk += CHUNK) {
        if (chunk > 0u) {
            workgroupBarrier();
        }
        stage(chunk, lane);
        workgroupBarrier();
        let width = min(CHUNK, params.units - chunk);
        for (var u = part; u < width; u += DEPTH * LANES) {
            let next = load(rows, min(chunk + u + DEPTH * LANES, end));
            var next_far = next;
            if (DEPTH > 1u) {
                next_far = load(rows, min(chunk + u + (DEPTH + 1u) * LANES, end));
            }
            add_unit(near, u);
            if (DEPTH > 1u && u + LANES < width) {
                add_unit(far, u + LANES);
            }
            near = next;
            far = next_far;
        }
    }
}

// Component k of four.
fn component(four: vec4<f32>, k: u32) -> f32 {
    let two = select(four.xy, four.zw, k > 1u);
    return select(two.x, two.y, (k & 1u) == 1u);
}
