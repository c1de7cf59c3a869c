// out = softmax(scale * q K^T) V over positions 0 to the row's own, for segments of many rows; online softmax in f32.
//
// One workgroup of 256 a (segment, 16 of its rows, query head). 16 positions a round: K and V pass through workgroup
// memory 64 columns at a time; each invocation scores one (row, position), then sums four columns of a row a chunk.
// Limits: head_dim at most 128 (CHUNKS of 64), 14 KiB of workgroup memory. Padding entries do nothing.
// FORMAT of the cache: 0 f32, 1 f16, 2 bf16, 4 e4m3.
struct Params {
    q: vec2<u32>, cache_k: vec2<u32>, cache_v: vec2<u32>, table: vec2<u32>, out: vec2<u32>,
    segments: u32, heads: u32, group: u32, head_dim: u32, context: u32, tiles: u32, scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>; // [rows, heads * head_dim]
@group(0) @binding(2) var<storage, read> cache_k: array<u32>; // [slots * context, kv_heads * head_dim], packed
@group(0) @binding(3) var<storage, read> cache_v: array<u32>; // [slots * context, kv_heads * head_dim], packed
@group(0) @binding(4) var<storage, read> table: array<u32>; // [segments, 4]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, heads * head_dim]

var<workgroup> queries: array<vec4<f32>, 256 * CHUNKS>; // [16 rows, 16 * CHUNKS]
var<workgroup> staged: array<vec4<f32>, 272>; // [16 positions, 16 and one of padding against bank conflicts]
var<workgroup> scores: array<f32, 256>; // [16 rows, 16 positions]
var<workgroup> weights: array<f32, 256>; // [16 rows, 16 positions]

const LOWEST: f32 = -3.0e38;

fn k_at(i: u32) -> f32 {
    return element_of(cache_k[i / PER], i);
}

fn v_at(i: u32) -> f32 {
    return element_of(cache_v[i / PER], i);
}

// Four columns of a row of q from `col`, zero past the head.
fn four_queries(at: u32, col: u32) -> vec4<f32> {
    var r = vec4<f32>();
    if (col < params.head_dim) { r.x = q[at + col]; }
    if (col + 1u < params.head_dim) { r.y = q[at + col + 1u]; }
    if (col + 2u < params.head_dim) { r.z = q[at + col + 2u]; }
    if (col + 3u < params.head_dim) { r.w = q[at + col + 3u]; }
    return r;
}

fn four_keys(at: u32, col: u32) -> vec4<f32> {
    var r = vec4<f32>();
    if (col < params.head_dim) { r.x = k_at(at + col); }
    if (col + 1u < params.head_dim) { r.y = k_at(at + col + 1u); }
    if (col + 2u < params.head_dim) { r.z = k_at(at + col + 2u); }
    if (col + 3u < params.head_dim) { r.w = k_at(at + col + 3u); }
    return r;
}

fn four_values(at: u32, col: u32) -> vec4<f32> {
    var r = vec4<f32>();
    if (col < params.head_dim) { r.x = v_at(at + col); }
    if (col + 1u < params.head_dim) { r.y = v_at(at + col + 1u); }
    if (col + 2u < params.head_dim) { r.z = v_at(at + col + 2u); }
    if (col + 3u < params.head_dim) { r.w = v_at(at + col + 3u); }
    return r;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    if (i >= params.segments * params.tiles * params.heads) {
        return;
    }
    let head = i % params.heads;
    let first = i / params.heads % params.tiles * 16u;
    let entry = params.table.x + i / params.heads / params.tiles * params.table.y;
    let length = table[entry + 1u];
    if (first >= length) {
        return;
    }
    let end = table[entry + 3u] + min(length, first + 16u);
    let own = lane / 16u;
    let other = lane % 16u;
    let row = table[entry] + first + own;
    let inside = first + own < length;
    let position = table[entry + 3u] + first + own;
    for (var c = 0u; c < CHUNKS; c++) {
        var four = vec4<f32>();
        if (inside) {
            four = four_queries(params.q.x + row * params.q.y + head * params.head_dim, c * 64u + other * 4u);
        }
        queries[(own * CHUNKS + c) * 16u + other] = four;
    }
    let column = head / params.group * params.head_dim;
    let slot = table[entry + 2u] * params.context;
    var largest = LOWEST;
    var total = 0.0;
    var sums: array<vec4<f32>, CHUNKS>;
    for (var base = 0u; base < end; base += 16u) {
        // The position that this invocation stages; past the end it repeats the last, which is masked or weighs nothing.
        let staged_row = slot + min(base + own, end - 1u);
        var s = 0.0;
        for (var c = 0u; c < CHUNKS; c++) {
            let at = params.cache_k.x + staged_row * params.cache_k.y + column;
            staged[own * 17u + other] = four_keys(at, c * 64u + other * 4u);
            workgroupBarrier();
            for (var k = 0u; k < 16u; k++) {
                s += dot(queries[(own * CHUNKS + c) * 16u + k], staged[other * 17u + k]);
            }
            workgroupBarrier();
        }
        scores[lane] = select(LOWEST, s * params.scale, base + other <= position && base + other < end);
        workgroupBarrier();
        var top = largest;
        for (var k = 0u; k < 16u; k++) {
            top = max(top, scores[own * 16u + k]);
        }
        weights[lane] = select(0.0, exp(scores[lane] - top), scores[lane] > LOWEST);
        workgroupBarrier();
        let shrink = exp(largest - top);
        largest = top;
        total *= shrink;
        for (var k = 0u; k < 16u; k++) {
            total += weights[own * 16u + k];
        }
        for (var c = 0u; c < CHUNKS; c++) {
            let at = params.cache_v.x + staged_row * params.cache_v.y + column;
            staged[own * 17u + other] = four_values(at, c * 64u + other * 4u);
            workgroupBarrier();
            var sum = sums[c] * shrink;
            for (var k = 0u; k < 16u; k++) {
                sum += weights[own * 16u + k] * staged[k * 17u + other];
            }
            sums[c] = sum;
            workgroupBarrier();
        }
    }
    if (inside) {
        let at = params.out.x + row * params.out.y + head * params.head_dim;
        for (var c = 0u; c < CHUNKS; c++) {
            keep(at, c * 64u + other * 4u, sums[c] / total);
        }
    }
}

fn keep(at: u32, col: u32, four: vec4<f32>) {
    if (col < params.head_dim) { out[at + col] = four.x; }
    if (col + 1u < params.head_dim) { out[at + col + 1u] = four.y; }
    if (col + 2u < params.head_dim) { out[at + col + 2u] = four.z; }
    if (col + 3u < params.head_dim) { out[at + col + 3u] = four.w; }
}
