// out = x weight^T + bias, or out += scale * (x weight^T + bias), for an F32 weight and few rows of bf16, all in f32.
//
// x [rows, inputs], weight [outputs, inputs] f32, bias [outputs] f32 or null, out [rows, outputs]; whole fours of inputs.
// matmul_rows_ROWS: a block computes 8 outputs (blockIdx.x) by ROWS rows (blockIdx.y); its warps share the columns, and
// their sums are joined in order.
#include "common.cuh"

constexpr u32 OUTPUTS = 8;

// Adds up every value over the warp: each halving leaves a lane half of them, at last SUMS / 32 from lane * SUMS / 32 on.
template <u32 SUMS, u32 LANES>
__device__ inline void deal_sums(float* v) {
    constexpr u32 HALF = SUMS * LANES / 32;
    bool upper = threadIdx.x % 32 & LANES;
#pragma unroll
    for (u32 i = 0; i < HALF; i++) {
        float mine = upper ? v[i + HALF] : v[i], other = upper ? v[i] : v[i + HALF];
        v[i] = mine + __shfl_xor_sync(ALL, other, LANES);
    }
    if constexpr (LANES > 1) deal_sums<SUMS, LANES / 2>(v);
}

template <u32 ROWS, u32 WARPS>
__device__ inline void product(const Window& x, const Bank& w, const float* bias, const Store& how, const Window& out, u32 rows) {
    constexpr u32 SUMS = OUTPUTS * ROWS;
    __shared__ float joined[WARPS][SUMS];
    release_next();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * OUTPUTS, base = blockIdx.y * ROWS;
    float sums[SUMS] = {};
    await_previous();
    for (u32 col = threadIdx.x * 4; col < w.cols; col += 128 * WARPS) {
        float4 weights[OUTPUTS];
        uint2 fours[ROWS];
#pragma unroll
        for (u32 o = 0; o < OUTPUTS; o++) {
            const float* line = reinterpret_cast<const float*>(w.data) + u64(min(first + o, w.rows - 1)) * w.cols;
            weights[o] = *reinterpret_cast<const float4*>(line + col);
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            const u16* row = reinterpret_cast<const u16*>(x.data) + u64(min(base + r, rows - 1)) * x.stride;
            fours[r] = *reinterpret_cast<const uint2*>(row + col);
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            float a = bits_f32(fours[r].x << 16), b = bits_f32(fours[r].x & 0xffff0000u);
            float c = bits_f32(fours[r].y << 16), d = bits_f32(fours[r].y & 0xffff0000u);
#pragma unroll
            for (u32 o = 0; o < OUTPUTS; o++) {
                sums[r * OUTPUTS + o] += weights[o].x * a + weights[o].y * b + (weights[o].z * c + weights[o].w * d);
            }
        }
    }
    deal_sums<SUMS, 16>(sums);
#pragma unroll
    for (u32 i = 0; i < SUMS / 32; i++) joined[warp][lane * (SUMS / 32) + i] = sums[i];
    __syncthreads();
    u32 row = base + threadIdx.x / OUTPUTS, output = first + threadIdx.x % OUTPUTS;
    if (threadIdx.x >= SUMS || row >= rows || output >= w.rows) return;
    float sum = bias ? bias[output] : 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += joined[i][threadIdx.x];
    store(out, row, output, sum, how);
}

#define FORM(ROWS, WARPS)                                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 16 / WARPS) matmul_rows_##ROWS(                       \
        Window x, Bank w, const float* bias, Store how, Window out, u32 rows) {                           \
        product<ROWS, WARPS>(x, w, bias, how, out, rows);                                                 \
    }
FORM(4, 16)
FORM(8, 8)
