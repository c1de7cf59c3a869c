// out = softmax(scale * q K^T) V as in attention.wgsl, without barriers: for software adapters.
//
// One invocation a (row, query head, part of the context), 8 a workgroup, with its query and its sums in registers; online
// softmax in f32. With SPLIT the parts go to `out` as (maximum, sum, columns) for attention_combine. Padding rows write
// nowhere. Limits: caches in f32, heads of FOURS fours, at most 16.
struct Params {
    q: vec2<u32>, cache_k: vec2<u32>, cache_v: vec2<u32>, places: vec2<u32>, out: vec2<u32>,
    rows: u32, heads: u32, group: u32, context: u32, parts: u32, scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>; // [rows, heads * FOURS]
@group(0) @binding(2) var<storage, read> cache_k: array<vec4<f32>>; // [slots * context, kv_heads * FOURS]
@group(0) @binding(3) var<storage, read> cache_v: array<vec4<f32>>; // [slots * context, kv_heads * FOURS]
@group(0) @binding(4) var<storage, read> places: array<u32>; // [rows, 4]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, heads * FOURS * 4], or the parts

const LOWEST: f32 = -3.0e38;

// Four `i` to `i + 3` of the query, zero past the head.
fn queries(at: u32, i: u32) -> mat4x4<f32> {
    var m = mat4x4<f32>();
    m[0] = q[at + i];
    if (i + 1u < FOURS) { m[1] = q[at + i + 1u]; }
    if (i + 2u < FOURS) { m[2] = q[at + i + 2u]; }
    if (i + 3u < FOURS) { m[3] = q[at + i + 3u]; }
    return m;
}

// Their product with a key.
fn score(m: mat4x4<f32>, at: u32, i: u32) -> f32 {
    var sum = dot(m[0], cache_k[at + i]);
    if (i + 1u < FOURS) { sum += dot(m[1], cache_k[at + i + 1u]); }
    if (i + 2u < FOURS) { sum += dot(m[2], cache_k[at + i + 2u]); }
    if (i + 3u < FOURS) { sum += dot(m[3], cache_k[at + i + 3u]); }
    return sum;
}

fn weighed(m: mat4x4<f32>, shrink: f32, weight: f32, at: u32, i: u32) -> mat4x4<f32> {
    var r = m * shrink;
    r[0] += weight * cache_v[at + i];
    if (i + 1u < FOURS) { r[1] += weight * cache_v[at + i + 1u]; }
    if (i + 2u < FOURS) { r[2] += weight * cache_v[at + i + 2u]; }
    if (i + 3u < FOURS) { r[3] += weight * cache_v[at + i + 3u]; }
    return r;
}

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 8u + lane;
    if (i >= params.rows * params.heads * params.parts) {
        return;
    }
    let part = i % params.parts;
    let head = i / params.parts % params.heads;
    let row = i / params.parts / params.heads;
    let place = params.places.x + row * params.places.y;
    if (places[place] == 0xffffffffu) {
        return;
    }
    let seen = places[place + 1u] + 1u;
    let share = (seen + params.parts - 1u) / params.parts;
    let start = min(seen, part * share);
    let end = min(seen, start + share);
    let first = places[place] * params.context;
    let column = head / params.group * FOURS;
    let q_at = ((params.q.x + row * params.q.y) >> 2u) + head * FOURS;
    let k_stride = params.cache_k.y >> 2u;
    let v_stride = params.cache_v.y >> 2u;
    let k_at = (params.cache_k.x >> 2u) + first * k_stride + column;
    let v_at = (params.cache_v.x >> 2u) + first * v_stride + column;
    let scale = params.scale;
    var q0 = queries(q_at, 0u);
    var q1 = mat4x4<f32>();
    var q2 = mat4x4<f32>();
    var q3 = mat4x4<f32>();
    if (FOURS > 4u) { q1 = queries(q_at, 4u); }
    if (FOURS > 8u) { q2 = queries(q_at, 8u); }
    if (FOURS > 12u) { q3 = queries(q_at, 12u); }
    var s0 = mat4x4<f32>();
    var s1 = mat4x4<f32>();
    var s2 = mat4x4<f32>();
    var s3 = mat4x4<f32>();
    var largest = LOWEST;
    var total = 0.0;
    for (var p = start; p < end; p++) {
        let k = k_at + p * k_stride;
        var product = score(q0, k, 0u);
        if (FOURS > 4u) { product += score(q1, k, 4u); }
        if (FOURS > 8u) { product += score(q2, k, 8u); }
        if (FOURS > 12u) { product += score(q3, k, 12u); }
        product *= scale;
        let top = max(largest, product);
        let shrink = exp(largest - top);
        let weight = exp(product - top);
        largest = top;
        total = total * shrink + weight;
        let v = v_at + p * v_stride;
        s0 = weighed(s0, shrink, weight, v, 0u);
        if (FOURS > 4u) { s1 = weighed(s1, shrink, weight, v, 4u); }
        if (FOURS > 8u) { s2 = weighed(s2, shrink, weight, v, 8u); }
        if (FOURS > 12u) { s3 = weighed(s3, shrink, weight, v, 12u); }
    }
    var at = params.out.x + row * params.out.y + head * FOURS * 4u;
    if (SPLIT == 1u) {
        at = i * (FOURS * 4u + 2u);
        out[at] = largest;
        out[at + 1u] = total;
        at += 2u;
        total = 1.0;
    }
    var sums = array<mat4x4<f32>, 4>(s0, s1, s2, s3);
    for (var f = 0u; f < FOURS; f++) {
        for (var k = 0u; k < 4u; k++) {
            out[at + 4u * f + k] = sums[f / 4u][f % 4u][k] / total;
        }
    }
}
