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

// ---- a row routed by a block, for up to 256 experts and 32 choices, without groups and with no softmax ahead of the choice

struct Routing {
    uint4 keys[64];
    float scores[256];
    u32 best[32];
};

// A thread has an expert and counts those that come before it.
__device__ inline void route_row(const Window& logits, const float* bias, const Rule& rule, const Window& ids,
                                 const Window& weights, u32 row, Routing& routing) {
    u32 experts = logits.cols, e = threadIdx.x;
    bool there = e < experts;
    float more = bias && there ? bias[e] : 0.0f;
    await_previous();
    float v = there ? load(logits, row, e) : 0.0f;
    if (rule.score == SIGMOID_SCORE) v = sigmoid(v);
    routing.scores[e] = v;
    reinterpret_cast<u32*>(routing.keys)[e] = there ? choice_key(v + more) : 0;
    __syncthreads();
    u32 rank = there ? count_before(routing.keys, experts, e, 0, 1) : experts;
    if (rank < rule.top_k) routing.best[rank] = e;
    __syncthreads();
    if (e >= 32) return;
    there = e < rule.top_k;
    float weight = choice_weight(rule, there ? routing.scores[routing.best[e]] : 0.0f);
    if (!there) return;
    reinterpret_cast<u32*>(ids.data)[row * ids.stride + e] = routing.best[e];
    reinterpret_cast<float*>(weights.data)[row * weights.stride + e] = weight;
}
