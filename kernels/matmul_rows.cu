// out = x weight^T + bias, or out += scale * (x weight^T + bias), for an F32 weight and few rows of bf16, all in f32.
//
// x [rows, inputs], weight [outputs, inputs] f32, bias [outputs] f32 or null, out [rows, outputs]; whole fours of inputs.
// A block of 8 warps computes 8 outputs (blockIdx.x) by 8 rows (blockIdx.y); its warps share the columns, and their sums
// are joined in order.
#include "common.cuh"

constexpr u32 WARPS = 8, SIDE = 8, SUMS = SIDE * SIDE;

// Adds up every value over the warp, of 2 * HALF at first; lane i is left with values 2 i and 2 i + 1.
template <u32 HALF>
__device__ inline void deal_sums(float* v) {
    bool upper = threadIdx.x % 32 & HALF / 2;
#pragma unroll
    for (u32 i = 0; i < HALF; i++) {
        float mine = upper ? v[i + HALF] : v[i], other = upper ? v[i] : v[i + HALF];
        v[i] = mine + __shfl_xor_sync(ALL, other, HALF / 2);
    }
    if constexpr (HALF > 2) deal_sums<HALF / 2>(v);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) matmul_rows(Window x, Bank w, const float* bias, Store how,
                                                                     Window out, u32 rows) {
    __shared__ float joined[WARPS][SUMS];
    release_next();
    await_previous();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * SIDE, base = blockIdx.y * SIDE;
    float sums[SUMS] = {};
    for (u32 col = threadIdx.x * 4; col < w.cols; col += 128 * WARPS) {
        float4 weights[SIDE];
#pragma unroll
        for (u32 o = 0; o < SIDE; o++) {
            const float* line = reinterpret_cast<const float*>(w.data) + u64(min(first + o, w.rows - 1)) * w.cols;
            weights[o] = *reinterpret_cast<const float4*>(line + col);
        }
#pragma unroll
        for (u32 r = 0; r < SIDE; r++) {
            const u16* row = reinterpret_cast<const u16*>(x.data) + u64(min(base + r, rows - 1)) * x.stride;
            uint2 four = *reinterpret_cast<const uint2*>(row + col);
            float a = bits_f32(four.x << 16), b = bits_f32(four.x & 0xffff0000u);
            float c = bits_f32(four.y << 16), d = bits_f32(four.y & 0xffff0000u);
#pragma unroll
            for (u32 o = 0; o < SIDE; o++) {
                sums[r * SIDE + o] += weights[o].x * a + weights[o].y * b + (weights[o].z * c + weights[o].w * d);
            }
        }
    }
    deal_sums<SUMS / 2>(sums);
    joined[warp][2 * lane] = sums[0];
    joined[warp][2 * lane + 1] = sums[1];
    __syncthreads();
    u32 row = base + threadIdx.x / SIDE, output = first + threadIdx.x % SIDE;
    if (threadIdx.x >= SUMS || row >= rows || output >= w.rows) return;
    float sum = bias ? bias[output] : 0.0f;
    for (u32 i = 0; i < WARPS; i++) sum += joined[i][threadIdx.x];
    store(out, row, output, sum, how);
}
