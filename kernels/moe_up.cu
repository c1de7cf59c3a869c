// Chooses each row's experts and runs their first product: out[row * top_k + choice] = f(x[row] weight[choice]^T).
//
// logits [rows, experts] f32, bias [experts] f32 or null, ids [rows, top_k] u32, weights [rows, top_k] f32, x [rows, inputs]
// bf16, weight [experts, outputs, inputs] in BF16, FP8 or NVFP4, out [rows * top_k, outputs].
//
// The rule is that of moe_route.cu without groups, scores by sigmoid or by softmax over the chosen. Every block ranks the
// experts of its pair's row for itself: two threads count how many of the others come before one. blockIdx.y = pair; the
// first block of a row writes its ids and weights. Limits: 1,024 experts, 32 choices.
#include "common_vec.cuh"

enum Score { SIGMOID_SCORE, SOFTMAX_BEFORE_CHOICE, SOFTMAX_AFTER_CHOICE };

constexpr u32 MAX_EXPERTS = 1024;

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

// Leaves the choices of `row` in chosen[top_k] and every expert's score in scores[experts].
__device__ inline void choose(const MoeUp& p, u32 row, u64* keys, float* scores, u32* chosen) {
    u32 experts = p.logits.cols;
    for (u32 e = threadIdx.x; e < experts; e += VEC_THREADS) {
        float v = load(p.logits, row, e);
        scores[e] = p.rule.score == SIGMOID_SCORE ? sigmoid(v) : v;
        keys[e] = rank_key(scores[e] + (p.bias ? p.bias[e] : 0.0f), e);
    }
    __syncthreads();
    for (u32 first = 0; first < experts; first += VEC_THREADS / 2) {
        u32 e = first + threadIdx.x / 2, before = 0;
        u64 key = e < experts ? keys[e] : 0;
#pragma unroll 8
        for (u32 other = threadIdx.x % 2; other < experts; other += 2) before += keys[other] > key;
        before += __shfl_xor_sync(ALL, before, 1);
        if (e < experts && before < p.rule.top_k) chosen[before] = e;
    }
    __syncthreads();
}

// One warp writes what was chosen.
__device__ inline void write_choice(const MoeUp& p, u32 row, const float* scores, const u32* chosen) {
    u32 lane = threadIdx.x, top_k = p.rule.top_k;
    float score = lane < top_k ? scores[chosen[lane]] : 0.0f;
    if (p.rule.score == SOFTMAX_AFTER_CHOICE) {
        // The first choice by logits need not be the largest logit once a bias joins in.
        float most = lane < top_k ? score : -INFINITE;
        for (int lanes = 16; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, lanes));
        score = lane < top_k ? expf(score - most) : 0.0f;
        score /= warp_sum(score);
    }
    float divisor = p.rule.normalise ? warp_sum(score) + p.rule.eps : 1.0f;
    if (lane >= top_k) return;
    reinterpret_cast<u32*>(p.ids.data)[row * p.ids.stride + lane] = chosen[lane];
    reinterpret_cast<float*>(p.weights.data)[row * p.weights.stride + lane] = score / divisor * p.rule.scale;
}

struct Stage {
    const MoeUp& p;
    u32 row;
    template <int FORMAT>
    __device__ inline void fill(uint4* staging) const {
        const u16* x = reinterpret_cast<const u16*>(p.x.data) + row * p.x.stride;
        stage_rows<FORMAT>(staging, 1, p.w.cols, [&](u32) { return x; });
    }
};

extern "C" __global__ void __launch_bounds__(256, 2) moe_up(const __grid_constant__ MoeUp p) {
    extern __shared__ uint4 memory[];
    __shared__ float partial[VEC_THREADS], scores[MAX_EXPERTS];
    __shared__ u64 keys[MAX_EXPERTS];
    __shared__ u32 chosen[32];
    u32 row = blockIdx.y / p.rule.top_k, choice = blockIdx.y % p.rule.top_k;
    release_next();
    await_previous();
    choose(p, row, keys, scores, chosen);
    if (choice == 0 && blockIdx.x == 0 && threadIdx.x < 32) write_choice(p, row, scores, chosen);
    Stage stage = {p, row};
    Groups groups = {blockIdx.x, gridDim.x, p.groups, p.splits};
    product_any<1>(p.w, chosen[choice], groups, 1, memory, partial, stage, [&](u32 output, u32, float v) {
        store(p.out, blockIdx.y, output, apply_rare(p.function, v));
    });
}
