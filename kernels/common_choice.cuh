// The router's choice by one block, and the operands of the experts' first product that waits for it: the rule of
// moe_route.cu without groups, scores by sigmoid or by softmax over the chosen. Limits: 256 experts, 32 choices.
#pragma once
#include "common.cuh"

enum Score { SIGMOID_SCORE, SOFTMAX_BEFORE_CHOICE, SOFTMAX_AFTER_CHOICE };

constexpr u32 MAX_EXPERTS = 256;

// Twins of `Rule` and `MoeUp` in moe_route.rs and moe_up.rs.
struct Rule {
    u32 score, top_k, groups, top_groups, normalise;
    float eps, scale;
};
struct MoeUp {
    Window logits;
    const float* bias;
    Window ids, weights, x;
    Bank w;
    Window out;
    Rule rule;
    u32 function, groups, splits;
};

// An expert's place in the order of choice: larger first; 0 for none.
__device__ inline u32 choice_key(float v) {
    u32 bits = __float_as_uint(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// What a block finds of one row's choice, in order: at most 32.
struct Choice {
    alignas(16) u32 keys[MAX_EXPERTS];
    u32 ids[32];
    float scores[32];
};

// The choices of `row`, ties to the lowest index. Each expert's threads count those that go before it.
__device__ inline void choose(const MoeUp& p, u32 row, Choice& found) {
    u32 experts = p.logits.cols, width = 4;
    while (width < experts) width *= 2;
    u32 parts = min(blockDim.x / width, 8u), e = threadIdx.x / parts, part = threadIdx.x % parts, before = 0;
    float score = 0.0f;
    if (e < experts) {
        score = load(p.logits, row, e);
        if (p.rule.score == SIGMOID_SCORE) score = sigmoid(score);
    }
    u32 key = e < experts ? choice_key(score + (p.bias ? p.bias[e] : 0.0f)) : 0;
    if (part == 0 && e < width) found.keys[e] = key;
    __syncthreads();
    for (u32 i = part * 4; i < width && e < width; i += parts * 4) {
        uint4 four = *reinterpret_cast<const uint4*>(found.keys + i);
#pragma unroll
        for (int k = 0; k < 4; k++) before += (&four.x)[k] >= key + (i + k >= e);
    }
    // The threads of an expert are neighbours.
    for (u32 lanes = parts / 2; lanes > 0; lanes /= 2) before += __shfl_xor_sync(ALL, before, lanes);
    if (part == 0 && e < experts && before < p.rule.top_k) {
        found.ids[before] = e;
        found.scores[before] = score;
    }
    __syncthreads();
}

// One warp writes what was chosen.
__device__ inline void write_choice(const MoeUp& p, u32 row, const Choice& found) {
    u32 lane = threadIdx.x, top_k = p.rule.top_k;
    float score = lane < top_k ? found.scores[lane] : 0.0f;
    if (p.rule.score == SOFTMAX_AFTER_CHOICE) {
        // The first choice by logits need not be the largest logit once a bias joins in.
        float most = lane < top_k ? score : -INFINITE;
        for (int lanes = 16; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, lanes));
        score = lane < top_k ? expf(score - most) : 0.0f;
        score /= warp_sum(score);
    }
    float divisor = p.rule.normalise ? warp_sum(score) + p.rule.eps : 1.0f;
    if (lane >= top_k) return;
    reinterpret_cast<u32*>(p.ids.data)[row * p.ids.stride + lane] = found.ids[lane];
    reinterpret_cast<float*>(p.weights.data)[row * p.weights.stride + lane] = score / divisor * p.rule.scale;
}
