// out = softmax(scale * q K^T) V over positions 0 to the row's own; grouped queries; online softmax in f32.
//
// One workgroup of 64 a (row, query head, part of the context). 64 positions a round: each invocation scores one, then
// each sums its own columns of V. With SPLIT the parts go to `out` as (maximum, sum, columns) for attention_combine,
// else there is one part and `out` is the result. Padding rows write nowhere. Limits: head_dim at most 256.
// FORMAT of the cache: 0 f32, 1 f16, 2 bf16, 4 e4m3.
struct Params {
    q: vec2<u32>, cache_k: vec2<u32>, cache_v: vec2<u32>, places: vec2<u32>, out: vec2<u32>,
    rows: u32, heads: u32, group: u32, head_dim: u32, context: u32, parts: u32, scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>; // [rows, heads * head_dim]
@group(0) @binding(2) var<storage, read> cache_k: array<u32>; // [slots * context, kv_heads * head_dim], packed
@group(0) @binding(3) var<storage, read> cache_v: array<u32>; // [slots * context, kv_heads * head_dim], packed
@group(0) @binding(4) var<storage, read> places: array<u32>; // [rows, 4]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, heads * head_dim], or the parts

var<workgroup> query: array<f32, 256>;
var<workgroup> scores: array<f32, 64>;
var<workgroup> weights: array<f32, 64>;

const LOWEST: f32 = -3.0e38;

fn score(at: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < params.head_dim; i++) {
        sum += query[i] * element_of(cache_k[(at + i) / PER], at + i);
    }
    return sum * params.scale;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
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
    let share = ((seen + params.parts - 1u) / params.parts + 63u) / 64u * 64u;
    let start = part * share;
    let end = min(seen, start + share);
    let first = places[place] * params.context;
    let column = head / params.group * params.head_dim;
    for (var c = lane; c < params.head_dim; c += 64u) {
        query[c] = q[params.q.x + row * params.q.y + head * params.head_dim + c];
    }
    workgroupBarrier();
    var largest = LOWEST;
    var total = 0.0;
    var sums = vec4<f32>();
    for (var round = start; round < end; round += 64u) {
        let position = round + lane;
        if (position < end) {
            scores[lane] = score(params.cache_k.x + (first + position) * params.cache_k.y + column);
        } else {
            scores[lane] = LOWEST;
        }
        workgroupBarrier();
        var top = largest;
        for (var p = 0u; p < 64u; p++) {
            top = max(top, scores[p]);
        }
        weights[lane] = select(0.0, exp(scores[lane] - top), position < end);
        workgroupBarrier();
        let shrink = exp(largest - top);
        largest = top;
        total *= shrink;
        sums *= shrink;
        for (var p = 0u; p < min(64u, end - round); p++) {
            let weight = weights[p];
            total += weight;
            let at = params.cache_v.x + (first + round + p) * params.cache_v.y + column;
            for (var c = 0u; c < FOURTHS; c++) {
                let own = lane + c * 64u;
                if (own < params.head_dim) {
                    sums[c] += weight * element_of(cache_v[(at + own) / PER], at + own);
                }
            }
        }
    }
    finish(i, row, head, lane, largest, total, sums);
}

fn finish(part: u32, row: u32, head: u32, lane: u32, largest: f32, total: f32, sums: vec4<f32>) {
    if (SPLIT == 1u) {
        let at = part * (params.head_dim + 2u);
        if (lane == 0u) {
            out[at] = largest;
            out[at + 1u] = total;
        }
        for (var c = 0u; c < FOURTHS; c++) {
            if (lane + c * 64u < params.head_dim) {
                out[at + 2u + lane + c * 64u] = sums[c];
            }
        }
        return;
    }
    let at = params.out.x + row * params.out.y + head * params.head_dim;
    for (var c = 0u; c < FOURTHS; c++) {
        if (lane + c * 64u < params.head_dim) {
            out[at + lane + c * 64u] = sums[c] / total;
        }
    }
}
