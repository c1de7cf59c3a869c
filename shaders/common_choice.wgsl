// The router's choice in the hands of whoever multiplies with an expert: each subgroup ranks a row's experts as far as it
// has to, PER of them a lane, so that the choice costs no dispatch of its own. CHOICE: 0 sigmoid, 1 softmax before the
// choice, 2 softmax over the chosen. Semantics: moe_route.wgsl; no groups of experts.
@group(0) @binding(5) var<storage, read_write> ids: array<u32>; // [rows, top_k]
@group(0) @binding(7) var<storage, read> logits: array<f32>; // [rows, experts]
@group(0) @binding(8) var<storage, read> bias: array<f32>; // [1, experts]
@group(0) @binding(9) var<storage, read_write> weights: array<f32>; // [rows, top_k]

const LAST: f32 = -3.0e38;

// What is chosen here is not uniform to a compiler, so barriers still follow: `store` leaves the product out instead.
fn is_left_out(expert: u32) -> bool {
    return false;
}

// The expert in place `slot` of a row's choice; the first workgroup of the last place leaves the row's ids and weights.
fn expert_of(row: u32, slot: u32, first: bool) -> u32 {
    let place = place_in_subgroup;
    let keep = first && slot + 1u == params.top_k && params.first == 0u;
    var scores: array<f32, PER>;
    var keys: array<u32, PER>;
    for (var j = 0u; j < PER; j++) {
        let e = place + j * SUBGROUP;
        let logit = logits[params.logits.x + row * params.logits.y + min(e, params.experts - 1u)];
        scores[j] = select(LAST, select(logit, sigmoid(logit), CHOICE == 0u), e < params.experts);
    }
    if (CHOICE == 1u) {
        var largest = LAST;
        for (var j = 0u; j < PER; j++) {
            largest = max(largest, scores[j]);
        }
        largest = subgroupMax(largest);
        var sum = 0.0;
        for (var j = 0u; j < PER; j++) {
            scores[j] = exp(scores[j] - largest);
            sum += scores[j];
        }
        let total = subgroupAdd(sum);
        for (var j = 0u; j < PER; j++) {
            scores[j] = scores[j] / total;
        }
    }
    for (var j = 0u; j < PER; j++) {
        let e = place + j * SUBGROUP;
        var rank = scores[j];
        if (params.biased == 1u) {
            rank += bias[params.bias.x + min(e, params.experts - 1u)];
        }
        keys[j] = select(0u, order_key(rank), e < params.experts);
    }
    var chosen = 0u;
    var own = 0u;
    var own_score = LAST;
    for (var k = 0u; k <= slot; k++) {
        var best = 0u;
        for (var j = 0u; j < PER; j++) {
            best = max(best, keys[j]);
        }
        best = subgroupMax(best);
        var candidate = NONE;
        for (var j = 0u; j < PER; j++) {
            candidate = min(candidate, select(NONE, place + j * SUBGROUP, keys[j] == best));
        }
        chosen = subgroupMin(candidate);
        var score = LAST;
        for (var j = 0u; j < PER; j++) {
            let found = place + j * SUBGROUP == chosen;
            keys[j] = select(keys[j], 0u, found);
            score = select(score, scores[j], found);
        }
        if (keep) {
            score = subgroupMax(score);
            own = select(own, chosen, place == k);
            own_score = select(own_score, score, place == k);
        }
    }
    if (keep) {
        weigh(row, own, own_score, place);
    }
    return chosen;
}

// Leaves what lane k holds of the row's choice k: its expert and its score.
fn weigh(row: u32, expert: u32, score: f32, place: u32) {
    var value = select(0.0, score, place < params.top_k);
    if (CHOICE == 2u) {
        value = select(0.0, exp(score - subgroupMax(score)), place < params.top_k);
    }
    var sum = subgroupAdd(value);
    if (CHOICE == 2u) {
        value = value / sum;
        sum = 1.0;
    }
    if (params.normalise == 1u) {
        value = value / (sum + params.eps);
    }
    if (place < params.top_k) {
        ids[params.ids.x + row * params.ids.y + place] = expert;
        weights[params.weights.x + row * params.weights.y + place] = value * params.scale;
    }
}
