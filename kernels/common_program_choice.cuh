// The choice of a row's experts, which every block makes for itself.
#pragma once
#include "common_program.cuh"

// A larger score goes first, then a lower index. Limit: 256 experts.
__device__ inline void run_choice(const Phase& phase, const Meeting& meeting, Kept& kept) {
    const Choice& p = phase.choice;
    // Threads of an expert share the others out, four at a time.
    u32 experts = p.logits.cols, shift = experts <= 128 ? 2 : 1, e = threadIdx.x >> shift;
    u32* keys = reinterpret_cast<u32*>(kept.keys);
    bool there = threadIdx.x < experts;
    float bias = p.bias && there ? p.bias[threadIdx.x] : 0.0f;
    if (phase.meet) meeting.wait();
    if (threadIdx.x < 256) {
        float score = there ? reinterpret_cast<const float*>(p.logits.data)[threadIdx.x] : 0.0f;
        if (p.rule.score == SIGMOID_SCORE) score = sigmoid(score);
        kept.scores[threadIdx.x] = score;
        keys[threadIdx.x] = there ? choice_key(score + bias) : 0;
    }
    __syncthreads();
    if (e < experts) {
        u32 step = 1 << shift, rank = count_before(kept.keys, experts, e, threadIdx.x & (step - 1), step);
        for (u32 lanes = 1; lanes < step; lanes *= 2) rank += __shfl_xor_sync(__activemask(), rank, lanes);
        if (rank < p.rule.top_k) kept.chosen[rank] = e;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    there = threadIdx.x < p.rule.top_k;
    float weight = choice_weight(p.rule, there ? kept.scores[kept.chosen[threadIdx.x]] : 0.0f);
    if (!there) return;
    kept.weight[threadIdx.x] = weight;
    if (blockIdx.x != 0) return;
    reinterpret_cast<u32*>(p.ids.data)[threadIdx.x] = kept.chosen[threadIdx.x];
    reinterpret_cast<float*>(p.weights.data)[threadIdx.x] = weight;
}
