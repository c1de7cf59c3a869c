// What the attention kernels on the tensor cores share, and their arguments.
//
// bf16 throughout, D = head_dim a multiple of 8; W = D / 64 rounded up, dims past D count as zero. Up to 16 heads of one
// key/value head, or neighbouring rows of them, are the rows of one product. Weights enter the second product as the sum
// of two bf16, so that rounding them costs less than the output's own rounding. Scores, softmax and sums are f32.
#pragma once
#include "common.cuh"

// Twin of `Attention` arguments in attention.rs.
struct Heads {
    Window q, k, v, out;
    const RowPlace* places;
    u32 context, heads, kv_heads, head_dim;
    float scale;
    u32 rows;
    const Segment* table;
    float* partial;  // [rows, heads, parts, D + 2]: weighted sums, largest score, sum of weights
    u32 parts, unused;
};

// Query fragments of heads `row` and `row + 8` of the product: chunk c holds dims 32c + 8t .. + 7.
template <int W>
__device__ inline void load_queries(const u16* low, const u16* high, u32 d, u32 (*q)[4][2]) {
    u32 t = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < 2 * W; c++) {
        u32 dim = 32 * c + 8 * t;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (low && dim < d) a = *reinterpret_cast<const uint4*>(low + dim);
        if (high && dim < d) b = *reinterpret_cast<const uint4*>(high + dim);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            q[c][i][0] = (&a.x)[i];
            q[c][i][1] = (&b.x)[i];
        }
    }
}

// Adds one chunk of 32 dims of 8 positions to their scores.
__device__ inline void add_scores(float* scores, const u32 (*q)[2], const uint4& k) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 a[4] = {q[2 * half][0], q[2 * half][1], q[2 * half + 1][0], q[2 * half + 1][1]};
        mma(scores, a, (&k.x)[2 * half], (&k.x)[2 * half + 1]);
    }
}

// The running maximum and sum of one product row, kept by the four lanes that hold it.
struct Running {
    float most = -INFINITE, total = 0.0f;

    // Takes the maximum of new scores in; what sums so far must be multiplied by.
    __device__ inline float raise(float score) {
        score = fmaxf(score, __shfl_xor_sync(ALL, score, 1));
        score = fmaxf(score, __shfl_xor_sync(ALL, score, 2));
        float next = fmaxf(most, score), keep = most == -INFINITE ? 0.0f : expf(most - next);
        most = next;
        return keep;
    }
    __device__ inline float weight(float score) const { return score == -INFINITE ? 0.0f : expf(score - most); }
};
