// A tile of 64 rows of x by 128 outputs on cooperative matrices of 16 x 16 halves, for weights whose elements are exact
// as halves: NVFP4, FP8, F16 and BF16 but for its smallest numbers, which lie below 2^-24. Rows of x are scaled by a power
// of two, so that their largest element is near 2^14, and go in as two halves, `high` and what it leaves: 21 bits of each
// element, so products are as exact as f32 ones. f32 accumulation.
//
// One workgroup of 128: four subgroups of 32, each 32 rows by 64 outputs; 32 columns a turn. The next turn's loads are in
// flight while this one's products run. Workgroup memory 25 KiB.
//
// The shader that includes this binds `weight` (units), `scales` and `x` (fours), has `inputs` in its parameters, and
// defines unit_row(output), x_at(row), row_scale(row), store(row, output, product), each for rows and outputs of the tile.
// Rows and outputs past the end repeat the last; `store` leaves them out.

const UNITS: u32 = 8u / FOURS; // of an output, in 32 columns
const STRIDE: u32 = 10u; // fours of a staged row: 32 columns, and 8 against bank conflicts
const PATCH: u32 = 20u; // floats of a row of 16 results on their way out

var<workgroup> high: array<vec4<f16>, 640>; // [64 rows, STRIDE]
var<workgroup> low: array<vec4<f16>, 640>; // [64 rows, STRIDE]
var<workgroup> codes: array<vec4<f16>, 1280>; // [128 outputs, STRIDE]
var<workgroup> patches: array<f32, 1280>; // [4 subgroups, 16 rows, PATCH]

fn stage_eight(at: u32, w: u32, scale: f32) {
    let eight = e2m1_eight(w);
    codes[at] = vec4<f16>(eight[0] * scale);
    codes[at + 1u] = vec4<f16>(eight[1] * scale);
}

// Unit `index` of the 128 * UNITS of a turn into workgroup memory.
fn stage_unit(index: u32, v: vec4<u32>, bytes: u32) {
    let at = index / UNITS * STRIDE + index % UNITS * FOURS;
    if (FORMAT == NVFP4) {
        let first = block_scale(bytes & 0xffu);
        let second = block_scale(bytes >> 8u);
        stage_eight(at, v.x, first);
        stage_eight(at + 2u, v.y, first);
        stage_eight(at + 4u, v.z, second);
        stage_eight(at + 6u, v.w, second);
    } else if (FORMAT == FP8) {
        codes[at] = vec4<f16>(e4m3_four(v.x));
        codes[at + 1u] = vec4<f16>(e4m3_four(v.y));
        codes[at + 2u] = vec4<f16>(e4m3_four(v.z));
        codes[at + 3u] = vec4<f16>(e4m3_four(v.w));
    } else {
        codes[at] = vec4<f16>(vec4<f32>(half_pair(v.x), half_pair(v.y)));
        codes[at + 1u] = vec4<f16>(vec4<f32>(half_pair(v.z), half_pair(v.w)));
    }
}

// The high half is cut off the bits, not rounded: a compiler may take a conversion to halves and back for nothing.
fn stage_x(at: u32, v: vec4<f32>) {
    let h = bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
    high[at] = vec4<f16>(h);
    low[at] = vec4<f16>(v - h);
}

// Where unit `index` of the first turn lies.
fn place_unit(index: u32) -> u32 {
    return unit_row(index / UNITS) + index % UNITS;
}

fn block_bytes(unit: u32) -> u32 {
    if (FORMAT == NVFP4) {
        return (scales[unit >> 1u] >> ((unit & 1u) * 16u)) & 0xffffu;
    }
    return 0u;
}

// The results of a subgroup's 16 x 16 outputs, from its spot.
fn store_patch(spot: u32, row: u32, output: u32, lane: u32) {
    workgroupBarrier();
    for (var k = 0u; k < 8u; k++) {
        let i = k * 32u + lane;
        store(row + i / 16u, output + i % 16u, patches[spot + i / 16u * PATCH + i % 16u]);
    }
    workgroupBarrier();
}

// The whole tile. `which` is the subgroup, `lane` the place in it.
fn multiply_tile(which: u32, lane: u32) {
    let own = which * 32u + lane;
    let col = own % 8u;
    // Four rows of x, a four of each, and UNITS units of the weight are this invocation's to stage.
    let r0 = own / 8u;
    let at0 = x_at(r0) + col;
    let at1 = x_at(r0 + 16u) + col;
    let at2 = x_at(r0 + 32u) + col;
    let at3 = x_at(r0 + 48u) + col;
    let s0 = row_scale(r0);
    let s1 = row_scale(r0 + 16u);
    let s2 = row_scale(r0 + 32u);
    let s3 = row_scale(r0 + 48u);
    let u0 = place_unit(own);
    let u1 = place_unit(own + 128u % (128u * UNITS));
    let u2 = place_unit(own + 256u % (128u * UNITS));
    let u3 = place_unit(own + 384u % (128u * UNITS));
    let row = which / 2u * 32u;
    let output = which % 2u * 64u;
    var c00: coop_mat16x16<f32, C>;
    var c01: coop_mat16x16<f32, C>;
    var c02: coop_mat16x16<f32, C>;
    var c03: coop_mat16x16<f32, C>;
    var c10: coop_mat16x16<f32, C>;
    var c11: coop_mat16x16<f32, C>;
    var c12: coop_mat16x16<f32, C>;
    var c13: coop_mat16x16<f32, C>;
    var x0 = x[at0];
    var x1 = x[at1];
    var x2 = x[at2];
    var x3 = x[at3];
    var b0 = block_bytes(u0);
    var w0 = weight[u0];
    var w1 = weight[u1];
    var w2 = weight[u2];
    var w3 = weight[u3];
    let turns = params.inputs / 32u;
    for (var turn = 0u; turn < turns; turn++) {
        stage_x(r0 * STRIDE + col, x0 * s0);
        stage_x((r0 + 16u) * STRIDE + col, x1 * s1);
        stage_x((r0 + 32u) * STRIDE + col, x2 * s2);
        stage_x((r0 + 48u) * STRIDE + col, x3 * s3);
        stage_unit(own, w0, b0);
        if (UNITS > 1u) {
            stage_unit(own + 128u, w1, 0u);
        }
        if (UNITS > 2u) {
            stage_unit(own + 256u, w2, 0u);
            stage_unit(own + 384u, w3, 0u);
        }
        workgroupBarrier();
        // The last turn loads its own columns again.
        let next = min(turn + 1u, turns - 1u);
        x0 = x[at0 + next * 8u];
        x1 = x[at1 + next * 8u];
        x2 = x[at2 + next * 8u];
        x3 = x[at3 + next * 8u];
        b0 = block_bytes(u0 + next * UNITS);
        w0 = weight[u0 + next * UNITS];
        if (UNITS > 1u) {
            w1 = weight[u1 + next * UNITS];
        }
        if (UNITS > 2u) {
            w2 = weight[u2 + next * UNITS];
            w3 = weight[u3 + next * UNITS];
        }
        for (var k = 0u; k < 8u; k += 4u) {
            let a = row * STRIDE + k;
            let b = output * STRIDE + k;
            let v0 = coopLoad<coop_mat16x16<f16, B>>(&codes[b], STRIDE);
            let v1 = coopLoad<coop_mat16x16<f16, B>>(&codes[b + 16u * STRIDE], STRIDE);
            let v2 = coopLoad<coop_mat16x16<f16, B>>(&codes[b + 32u * STRIDE], STRIDE);
            let v3 = coopLoad<coop_mat16x16<f16, B>>(&codes[b + 48u * STRIDE], STRIDE);
            let h0 = coopLoadT<coop_mat16x16<f16, A>>(&high[a], STRIDE);
            let l0 = coopLoadT<coop_mat16x16<f16, A>>(&low[a], STRIDE);
            c00 = coopMultiplyAdd(l0, v0, coopMultiplyAdd(h0, v0, c00));
            c01 = coopMultiplyAdd(l0, v1, coopMultiplyAdd(h0, v1, c01));
            c02 = coopMultiplyAdd(l0, v2, coopMultiplyAdd(h0, v2, c02));
            c03 = coopMultiplyAdd(l0, v3, coopMultiplyAdd(h0, v3, c03));
            let h1 = coopLoadT<coop_mat16x16<f16, A>>(&high[a + 16u * STRIDE], STRIDE);
            let l1 = coopLoadT<coop_mat16x16<f16, A>>(&low[a + 16u * STRIDE], STRIDE);
            c10 = coopMultiplyAdd(l1, v0, coopMultiplyAdd(h1, v0, c10));
            c11 = coopMultiplyAdd(l1, v1, coopMultiplyAdd(h1, v1, c11));
            c12 = coopMultiplyAdd(l1, v2, coopMultiplyAdd(h1, v2, c12));
            c13 = coopMultiplyAdd(l1, v3, coopMultiplyAdd(h1, v3, c13));
        }
        workgroupBarrier();
    }
    let spot = which * 16u * PATCH;
    let p = &patches[spot];
    let d00 = c00;
    coopStoreT(d00, p, PATCH);
    store_patch(spot, row, output, lane);
    let d01 = c01;
    coopStoreT(d01, p, PATCH);
    store_patch(spot, row, output + 16u, lane);
    let d02 = c02;
    coopStoreT(d02, p, PATCH);
    store_patch(spot, row, output + 32u, lane);
    let d03 = c03;
    coopStoreT(d03, p, PATCH);
    store_patch(spot, row, output + 48u, lane);
    let d10 = c10;
    coopStoreT(d10, p, PATCH);
    store_patch(spot, row + 16u, output, lane);
    let d11 = c11;
    coopStoreT(d11, p, PATCH);
    store_patch(spot, row + 16u, output + 16u, lane);
    let d12 = c12;
    coopStoreT(d12, p, PATCH);
    store_patch(spot, row + 16u, output + 32u, lane);
    let d13 = c13;
    coopStoreT(d13, p, PATCH);
    store_patch(spot, row + 16u, output + 48u, lane);
}
