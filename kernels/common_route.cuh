// The rule by which experts are chosen.
#pragma once
#include "common.cuh"

enum Score { SIGMOID_SCORE, SOFTMAX_BEFORE_CHOICE, SOFTMAX_AFTER_CHOICE };

// Twin of `Rule` in moe_route.rs.
struct Rule {
    u32 score, top_k, groups, top_groups, normalise;
    float eps, scale;
};

// An expert's place in the order of choice: larger first; 0 for none.
__device__ inline u32 choice_key(float v) {
    u32 bits = __float_as_uint(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// How many of the keys in every `step`-th four come before that of expert `e`: a larger one, or a lower index. Keys that fill
// up the last four are 0.
__device__ inline u32 count_before(const uint4* keys, u32 experts, u32 e, u32 first, u32 step) {
    u32 key = reinterpret_cast<const u32*>(keys)[e], count = 0;
#pragma unroll 4
    for (u32 i = first; 4 * i < experts; i += step) {
        uint4 four = keys[i];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 other = (&four.x)[k];
            count += other > key || (other == key && 4 * i + k < e);
        }
    }
    return count;
}

// The weight of a warp's chosen expert, lane i's being the i-th, from its score.
__device__ inline float choice_weight(const Rule& rule, float score) {
    u32 lane = threadIdx.x % 32;
    if (rule.score == SOFTMAX_AFTER_CHOICE) {
        // The first choice by logits need not be the largest logit once a bias joins in.
        float most = lane < rule.top_k ? score : -INFINITE;
        for (int lanes = 16; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, lanes));
        score = lane < rule.top_k ? expf(score - most) : 0.0f;
        score /= warp_sum(score);
    }
    float divisor = rule.normalise ? warp_sum(lane < rule.top_k ? score : 0.0f) + rule.eps : 1.0f;
    return score / divisor * rule.scale;
}

// ---- a row routed by a warp, for up to 256 experts and 32 choices, without groups and with no softmax ahead of the choice

// Lane i's choice is the i-th, and its score; a lane has EACH experts. Ties go to the lowest index.
template <u32 EACH>
__device__ inline void choose_among(const Window& logits, const float* bias, const Rule& rule, u32 row, u32& chosen, float& score) {
    u32 experts = logits.cols, lane = threadIdx.x % 32;
    float scores[EACH];
    u32 keys[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 e = lane + 32 * i;
        scores[i] = keys[i] = 0;
        if (e >= experts) continue;
        float v = load(logits, row, e);
        scores[i] = rule.score == SIGMOID_SCORE ? sigmoid(v) : v;
        keys[i] = choice_key(scores[i] + (bias ? bias[e] : 0.0f));
    }
    chosen = 0;
    score = 0.0f;
    for (u32 pick = 0; pick < rule.top_k; pick++) {
        u32 best = 0, place = ALL;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) best = max(best, keys[i]);
        best = __reduce_max_sync(ALL, best);
#pragma unroll
        for (u32 i = EACH; i-- > 0;) {
            if (keys[i] == best) place = lane + 32 * i;
        }
        place = min(__reduce_min_sync(ALL, place), experts - 1);
        float found = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (place != lane + 32 * i) continue;
            found = scores[i];
            keys[i] = 0;
        }
        found = __shfl_sync(ALL, found, place % 32);
        if (lane == pick) {
            chosen = place;
            score = found;
        }
    }
}

__device__ inline void choose(const Window& logits, const float* bias, const Rule& rule, u32 row, u32& chosen, float& score) {
    if (logits.cols <= 128) choose_among<4>(logits, bias, rule, row, chosen, score);
    else choose_among<8>(logits, bias, rule, row, chosen, score);
}

// One warp writes what it chose.
__device__ inline void write_choice(const Rule& rule, const Window& ids, const Window& weights, u32 row, u32 chosen, float score) {
    u32 lane = threadIdx.x % 32;
    float weight = choice_weight(rule, score);
    if (lane >= rule.top_k) return;
    reinterpret_cast<u32*>(ids.data)[row * ids.stride + lane] = chosen;
    reinterpret_cast<float*>(weights.data)[row * weights.stride + lane] = weight;
}
