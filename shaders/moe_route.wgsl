// Chooses top_k experts a row from the logits, best first, ties to the lowest index, and weighs them by unbiased scores.
// SCORE: 0 sigmoid, 1 softmax before the choice, 2 softmax over the chosen.
//
// One workgroup of 256 a row. An expert's rank is the number of experts before it, counted directly: no sorting and
// few barriers. Limits: 1,024 experts.
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

var<workgroup> scores: array<f32, 1024>;
var<workgroup> keys: array<u32, 1024>; // order of the biased scores; 0 for a group that does not stay
var<workgroup> chosen: array<f32, 1024>;
var<workgroup> sums: array<f32, 256>;

fn reduce_max(lane: u32, value: f32) -> f32 {
    workgroupBarrier();
    sums[lane] = value;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] = max(sums[lane], sums[lane + half]);
        }
    }
    workgroupBarrier();
    return sums[0];
}

fn reduce_sum(lane: u32, value: f32) -> f32 {
    workgroupBarrier();
    sums[lane] = value;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
        }
    }
    workgroupBarrier();
    return sums[0];
}

// Scores of all experts into workgroup memory.
fn score(row: u32, lane: u32) {
    let first = params.logits.x + row * params.logits.y;
    var largest = -3.0e38;
    for (var e = lane; e < params.experts; e += 256u) {
        let logit = logits[first + e];
        largest = max(largest, logit);
        scores[e] = select(logit, sigmoid(logit), SCORE == 0u);
    }
    if (SCORE == 1u) {
        let top = reduce_max(lane, largest);
        var sum = 0.0;
        for (var e = lane; e < params.experts; e += 256u) {
            scores[e] = exp(scores[e] - top);
            sum += scores[e];
        }
        let total = reduce_sum(lane, sum);
        for (var e = lane; e < params.experts; e += 256u) {
            scores[e] = scores[e] / total;
        }
    }
    workgroupBarrier();
}

fn biased_score(e: u32) -> f32 {
    if (params.biased == 1u) {
        return scores[e] + bias[params.bias.x + e];
    }
    return scores[e];
}

// What a group is worth: its best two biased scores.
fn worth(group: u32) -> u32 {
    let width = params.experts / params.groups;
    var first = biased_score(group * width);
    if (width == 1u) {
        return order_key(first);
    }
    var second = -3.0e38;
    for (var e = 1u; e < width; e++) {
        let value = biased_score(group * width + e);
        second = max(second, min(first, value));
        first = max(first, value);
    }
    return order_key(first + second);
}

// Whether a group is among the best; `keys` holds what each is worth.
fn stays(group: u32) -> bool {
    var before = 0u;
    for (var g = 0u; g < params.groups; g++) {
        if (keys[g] > keys[group] || (keys[g] == keys[group] && g < group)) {
            before += 1u;
        }
    }
    return before < params.top_groups;
}

// Biased keys of the experts, 0 where the group is dropped. At most 4 experts an invocation.
fn rank_keys(lane: u32) {
    var kept = vec4<bool>(true);
    if (params.top_groups < params.groups) {
        for (var g = lane; g < params.groups; g += 256u) {
            keys[g] = worth(g);
        }
        workgroupBarrier();
        for (var k = 0u; k < 4u; k++) {
            let e = lane + k * 256u;
            if (e < params.experts) {
                kept[k] = stays(e / (params.experts / params.groups));
            }
        }
        workgroupBarrier();
    }
    for (var k = 0u; k < 4u; k++) {
        let e = lane + k * 256u;
        if (e < params.experts) {
            keys[e] = select(0u, order_key(biased_score(e)), kept[k]);
        } else {
            keys[e] = 0u;
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat(group, count);
    if (row >= params.rows) {
        return;
    }
    score(row, lane);
    rank_keys(lane);
    for (var e = lane; e < params.experts; e += 256u) {
        let key = keys[e];
        var rank = 0u;
        // Four at a time, so that their loads are in flight together; what pads the last four is before none.
        for (var other = 0u; other < params.experts; other += 4u) {
            let near = keys[other];
            let second = keys[other + 1u];
            let third = keys[other + 2u];
            let far = keys[other + 3u];
            rank += u32(near > key || (near == key && other < e));
            rank += u32(second > key || (second == key && other + 1u < e));
            rank += u32(third > key || (third == key && other + 2u < e));
            rank += u32(far > key || (far == key && other + 3u < e));
        }
        if (rank < params.top_k) {
            ids[params.ids.x + row * params.ids.y + rank] = e;
            chosen[rank] = scores[e];
        }
    }
    workgroupBarrier();
    weigh(row, lane);
}

// Weights of the chosen, each invocation over all of them: top_k is small.
fn weigh(row: u32, lane: u32) {
    var total = 0.0;
    for (var k = 0u; k < params.top_k; k++) {
        // The first is the largest where scores are logits.
        total += select(chosen[k], exp(chosen[k] - chosen[0]), SCORE == 2u);
    }
    for (var k = lane; k < params.top_k; k += 256u) {
        var value = chosen[k];
        var sum = total;
        if (SCORE == 2u) {
            value = exp(value - chosen[0]) / total;
            sum = 1.0;
        }
        if (params.normalise == 1u) {
            value = value / (sum + params.eps);
        }
        weights[params.weights.x + row * params.weights.y + k] = value * params.scale;
    }
}
