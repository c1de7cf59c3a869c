// The choice of experts as in moe_route.wgsl, without barriers and without groups: for software adapters.
// SCORE: 0 sigmoid, 1 softmax before the choice, 2 softmax over the chosen.
// One invocation a row, 8 a workgroup; it looks for the next best expert top_k times.
struct Params {
    logits: vec2<u32>, bias: vec2<u32>, ids: vec2<u32>, weights: vec2<u32>,
    rows: u32, experts: u32, top_k: u32, groups: u32, top_groups: u32, biased: u32, normalise: u32,
    eps: f32, scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // [rows, experts]
@group(0) @binding(2) var<storage, read> bias: array<f32>; // [1, experts]
@group(0) @binding(3) var<storage, read_write> ids: array<u32>; // [rows, top_k]
@group(0) @binding(4) var<storage, read_write> weights: array<f32>; // [rows, top_k]

// The largest logit of the row and the sum of exponentials above it, where the score is a softmax over all.
var<private> top: f32;
var<private> total: f32;

fn score_of(logit: f32) -> f32 {
    if (SCORE == 0u) {
        return sigmoid(logit);
    }
    if (SCORE == 1u) {
        return exp(logit - top) / total;
    }
    return logit;
}

fn sum_exponentials(first: u32) {
    top = logits[first];
    for (var e = 1u; e < params.experts; e++) {
        top = max(top, logits[first + e]);
    }
    for (var e = 0u; e < params.experts; e++) {
        total += exp(logits[first + e] - top);
    }
}

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat(group, count) * 8u + lane;
    if (row >= params.rows) {
        return;
    }
    let first = params.logits.x + row * params.logits.y;
    let ids_at = params.ids.x + row * params.ids.y;
    let weights_at = params.weights.x + row * params.weights.y;
    if (SCORE == 1u) {
        sum_exponentials(first);
    }
    var last_key = 0xffffffffu;
    var last = 0u;
    var largest = 0.0;
    var sum = 0.0;
    for (var k = 0u; k < params.top_k; k++) {
        var best_key = 0u;
        var best = 0xffffffffu;
        var value = 0.0;
        for (var e = 0u; e < params.experts; e++) {
            let score = score_of(logits[first + e]);
            var ranked = score;
            if (params.biased == 1u) {
                ranked += bias[params.bias.x + e];
            }
            let key = order_key(ranked);
            // Behind the last choice, before the best so far; of equals the lowest comes first.
            let behind = k == 0u || key < last_key || (key == last_key && e > last);
            if (behind && (key > best_key || best == 0xffffffffu)) {
                best_key = key;
                best = e;
                value = score;
            }
        }
        last_key = best_key;
        last = best;
        if (SCORE == 2u) {
            // The first is the largest.
            largest = select(largest, value, k == 0u);
            value = exp(value - largest);
        }
        sum += value;
        ids[ids_at + k] = best;
        weights[weights_at + k] = value;
    }
    var divisor = 1.0;
    if (SCORE == 2u) {
        divisor = sum;
        sum = 1.0;
    }
    for (var k = 0u; k < params.top_k; k++) {
        var value = weights[weights_at + k] / divisor;
        if (params.normalise == 1u) {
            value = value / (sum + params.eps);
        }
        weights[weights_at + k] = value * params.scale;
    }
}
