// out = softmax(scale * q K^T) V over positions 0 to the row's own; grouped queries; online softmax in f32.
//
// One workgroup of 128 a (row, key head, HEADS of its query heads, part of the context): its query heads share the keys
// and values that pass through workgroup memory, POSITIONS a round. TEAM invocations have a head: each scores one
// position, then sums FOURS_EACH fours of columns of V. With SPLIT the parts go to `out` as (maximum, sum, columns) for
// attention_combine, else there is one part and `out` is the result. Padding rows write nowhere.
// Limits: head_dim at most FOURTHS * 64, at most 256. FORMAT of the cache: 0 f32, 1 f16, 2 bf16, 4 e4m3.
struct Params {
    q: vec2<u32>, cache_k: vec2<u32>, cache_v: vec2<u32>, places: vec2<u32>, out: vec2<u32>,
    rows: u32, heads: u32, group: u32, head_dim: u32, context: u32, parts: u32, blocks: u32, scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>; // [rows, heads * head_dim]
@group(0) @binding(2) var<storage, read> cache_k: array<u32>; // [slots * context, kv_heads * head_dim], packed
@group(0) @binding(3) var<storage, read> cache_v: array<u32>; // [slots * context, kv_heads * head_dim], packed
@group(0) @binding(4) var<storage, read> places: array<u32>; // [rows, 4]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, heads * head_dim], or the parts

const TEAM: u32 = 128u / HEADS;
const FOURS: u32 = FOURTHS * 16u; // of a head's columns
const FOURS_EACH: u32 = (FOURS + TEAM - 1u) / TEAM;
const STRIDE: u32 = FOURS + 1u; // of a staged position, one four against bank conflicts
const LOADS: u32 = (POSITIONS * FOURS + 127u) / 128u;
const LOWEST: f32 = -3.0e38;

var<workgroup> queries: array<vec4<f32>, HEADS * FOURS>;
var<workgroup> staged: array<vec4<f32>, POSITIONS * STRIDE>;
var<workgroup> scores: array<f32, 128>; // [HEADS, TEAM]
var<workgroup> weights: array<f32, 128>; // [HEADS, TEAM]

fn k_at(i: u32) -> f32 {
    return element_of(cache_k[i / PER], i);
}

fn v_at(i: u32) -> f32 {
    return element_of(cache_v[i / PER], i);
}

// Keys of POSITIONS positions from `first`, of which the last is `last`, which those past it repeat.
fn stage_keys(first: u32, last: u32, column: u32, lane: u32) {
    for (var k = 0u; k < LOADS; k++) {
        let i = min(k * 128u + lane, POSITIONS * FOURS - 1u);
        let at = params.cache_k.x + min(first + i / FOURS, last) * params.cache_k.y + column;
        let c = i % FOURS * 4u;
        var four = vec4<f32>();
        if (c < params.head_dim) { four.x = k_at(at + c); }
        if (c + 1u < params.head_dim) { four.y = k_at(at + c + 1u); }
        if (c + 2u < params.head_dim) { four.z = k_at(at + c + 2u); }
        if (c + 3u < params.head_dim) { four.w = k_at(at + c + 3u); }
        staged[i / FOURS * STRIDE + i % FOURS] = four;
    }
}

fn stage_values(first: u32, last: u32, column: u32, lane: u32) {
    for (var k = 0u; k < LOADS; k++) {
        let i = min(k * 128u + lane, POSITIONS * FOURS - 1u);
        let at = params.cache_v.x + min(first + i / FOURS, last) * params.cache_v.y + column;
        let c = i % FOURS * 4u;
        var four = vec4<f32>();
        if (c < params.head_dim) { four.x = v_at(at + c); }
        if (c + 1u < params.head_dim) { four.y = v_at(at + c + 1u); }
        if (c + 2u < params.head_dim) { four.z = v_at(at + c + 2u); }
        if (c + 3u < params.head_dim) { four.w = v_at(at + c + 3u); }
        staged[i / FOURS * STRIDE + i % FOURS] = four;
    }
}

fn stage_queries(row: u32, first_head: u32, last_head: u32, lane: u32) {
    for (var i = lane; i < HEADS * FOURS; i += 128u) {
        let head = min(first_head + i / FOURS, last_head);
        let at = params.q.x + row * params.q.y + head * params.head_dim;
        let c = i % FOURS * 4u;
        var four = vec4<f32>();
        if (c < params.head_dim) { four.x = q[at + c]; }
        if (c + 1u < params.head_dim) { four.y = q[at + c + 1u]; }
        if (c + 2u < params.head_dim) { four.z = q[at + c + 2u]; }
        if (c + 3u < params.head_dim) { four.w = q[at + c + 3u]; }
        queries[i] = four;
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let kv_heads = params.heads / params.group;
    let i = flat(group, count);
    if (i >= params.rows * kv_heads * params.blocks * params.parts) {
        return;
    }
    let part = i % params.parts;
    let block = i / params.parts % params.blocks;
    let kv_head = i / params.parts / params.blocks % kv_heads;
    let row = i / params.parts / params.blocks / kv_heads;
    let place = params.places.x + row * params.places.y;
    if (places[place] == 0xffffffffu) {
        return;
    }
    let seen = places[place + 1u] + 1u;
    let share = ((seen + params.parts - 1u) / params.parts + POSITIONS - 1u) / POSITIONS * POSITIONS;
    let start = min(seen, part * share);
    let end = min(seen, start + share);
    let slot = places[place] * params.context;
    let column = kv_head * params.head_dim;
    let first_head = kv_head * params.group + block * HEADS;
    let last_head = kv_head * params.group + params.group - 1u;
    let own = lane / TEAM;
    let other = lane % TEAM;
    stage_queries(row, first_head, last_head, lane);
    var largest = LOWEST;
    var total = 0.0;
    var sums: array<vec4<f32>, FOURS_EACH>;
    for (var round = start; round < end; round += POSITIONS) {
        stage_keys(slot + round, slot + end - 1u, column, lane);
        workgroupBarrier();
        var score = LOWEST;
        if (other < POSITIONS && round + other < end) {
            var s = 0.0;
            for (var k = 0u; k < FOURS; k++) {
                s += dot(queries[own * FOURS + k], staged[other * STRIDE + k]);
            }
            score = s * params.scale;
        }
        scores[lane] = score;
        workgroupBarrier();
        stage_values(slot + round, slot + end - 1u, column, lane);
        var top = largest;
        for (var p = 0u; p < min(TEAM, POSITIONS); p++) {
            top = max(top, scores[own * TEAM + p]);
        }
        weights[lane] = select(0.0, exp(score - top), score > LOWEST);
        workgroupBarrier();
        let shrink = exp(largest - top);
        largest = top;
        total *= shrink;
        for (var f = 0u; f < FOURS_EACH; f++) {
            sums[f] *= shrink;
        }
        for (var p = 0u; p < POSITIONS; p++) {
            let weight = weights[own * TEAM + p];
            total += weight;
            for (var f = 0u; f < FOURS_EACH; f++) {
                sums[f] += weight * staged[p * STRIDE + min(f * TEAM + other, FOURS - 1u)];
            }
        }
        workgroupBarrier();
    }
    let head = first_head + own;
    if (head > last_head) {
        return;
    }
    var at = params.out.x + row * params.out.y + head * params.head_dim;
    if (SPLIT == 1u) {
        at = ((row * params.heads + head) * params.parts + part) * (params.head_dim + 2u);
        if (other == 0u) {
            out[at] = largest;
            out[at + 1u] = total;
        }
        at += 2u;
        total = 1.0;
    }
    for (var f = 0u; f < FOURS_EACH; f++) {
        let four = f * TEAM + other;
        if (four < FOURS) {
            keep(at, four * 4u, sums[f] / total);
        }
    }
}

fn keep(at: u32, col: u32, four: vec4<f32>) {
    if (col < params.head_dim) { out[at + col] = four.x; }
    if (col + 1u < params.head_dim) { out[at + col + 1u] = four.y; }
    if (col + 2u < params.head_dim) { out[at + col + 2u] = four.z; }
    if (col + 3u < params.head_dim) { out[at + col + 3u] = four.w; }
}
