// Operands of products in FP8 (E4M3), for those who ask for them (matmul_fp8.rs): numbers change.
//
// matmul_fp8_weight: weight [rows, cols] NVFP4 -> E4M3, smaller by 6, the largest value of a code: then the largest product
// with a block scale is the largest of E4M3, and codes of 1.5, 3 and 6 stay exact. The others are rounded to three bits.
// A thread converts 8 columns.
// matmul_fp8_rows: x [rows, cols] bf16 -> E4M3, each row by a factor of its own, so that its largest value is E4M3's largest;
// `scales` [rows] gets what undoes it. One block a row.
#include "common_mma.cuh"

// Two values as E4M3, `low` in the low byte.
__device__ inline u16 e4m3_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
    u16 out;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
    return out;
#else
    return u16(f32_e4m3(low) | f32_e4m3(high) << 8);
#endif
}

__device__ inline uint2 e4m3_eight(const float* v) {
    return make_uint2(e4m3_pair(v[0], v[1]) | u32(e4m3_pair(v[2], v[3])) << 16,
                      e4m3_pair(v[4], v[5]) | u32(e4m3_pair(v[6], v[7])) << 16);
}

extern "C" __global__ void matmul_fp8_weight(const __grid_constant__ Bank w, uint2* out /* [rows, cols / 8] */) {
    u32 words = w.cols / 8, i = blockIdx.x * blockDim.x + threadIdx.x, row = i / words;
    if (row >= w.rows) return;
    u64 place = scale_place(w, 0, row, i % words / 2);
    u32 word = reinterpret_cast<const u32*>(w.data)[place * 2 + i % 2], pairs[4];
    dequantise<W_NVFP4>(&word, block_scale(w.scales[place]), pairs);
    // Fragments are smaller by 2^8.
    const float factor = FACTOR<W_NVFP4> / 6.0f;
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = bf16_f32(u16(pairs[j / 2] >> (j % 2 * 16))) * factor;
    out[i] = e4m3_eight(v);
}

extern "C" __global__ void matmul_fp8_rows(Window x, uint2* out /* [rows, cols / 8] */, float* scales) {
    __shared__ u32 scratch[32];
    u32 row = blockIdx.x, pieces = x.cols / 8;
    const uint4* from = reinterpret_cast<const uint4*>(reinterpret_cast<const u16*>(x.data) + row * x.stride);
    auto eight = [&](u32 i, float* v) {
        uint4 piece = from[i];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = bf16_f32(u16((&piece.x)[j / 2] >> (j % 2 * 16)));
    };
    float largest = 0.0f, v[8];
    for (u32 i = threadIdx.x; i < pieces; i += blockDim.x) {
        eight(i, v);
#pragma unroll
        for (int j = 0; j < 8; j++) largest = most(largest, fabsf(v[j]));
    }
    largest = block_most(largest, scratch);
    float factor = largest > 0.0f ? 448.0f / largest : 0.0f;
    if (threadIdx.x == 0) scales[row] = largest / 448.0f;
    for (u32 i = threadIdx.x; i < pieces; i += blockDim.x) {
        eight(i, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= factor;
        out[u64(row) * pieces + i] = e4m3_eight(v);
    }
}
