// out (+)= gated_rms_norm(y, z) weight^T + bias for up to 4 rows of bf16 (common_vec.cuh).
//
// y, z [rows, inputs] bf16, gain [inputs] f32, norm groups of whole 16-byte pieces, weight [outputs, inputs] in BF16, FP8
// or NVFP4. Every block norms the rows for itself, a warp one group: they come from the cache, while its weights come
// from memory.
#include "common_gated.cuh"
#include "common_vec.cuh"

// Eight columns of y as the norm wants them, and what multiplies them afterwards.
__device__ inline void read_gated(const GatedProduct& p, u32 row, u32 col, float* v, float* gate) {
    uint4 y = *reinterpret_cast<const uint4*>(reinterpret_cast<const u16*>(p.y.data) + row * p.y.stride + col);
    uint4 z = *reinterpret_cast<const uint4*>(reinterpret_cast<const u16*>(p.z.data) + row * p.z.stride + col);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 word = (&y.x)[i / 2], other = (&z.x)[i / 2];
        v[i] = bits_f32(i % 2 ? word & 0xffff0000u : word << 16);
        float s = quick_silu(bits_f32(i % 2 ? other & 0xffff0000u : other << 16));
        gate[i] = p.gate_first ? 1.0f : s;
        if (p.gate_first) v[i] *= s;
    }
}

template <int FORMAT>
__device__ inline void stage_gated(const GatedProduct& p, uint4* staging) {
    u32 lane = threadIdx.x % 32, width = p.w.cols / p.norm_groups, pitch = row_pieces<FORMAT>(p.w.cols);
    for (u32 i = threadIdx.x / 32; i < p.rows * p.norm_groups; i += VEC_WARPS) {
        u32 row = i / p.norm_groups, first = i % p.norm_groups * width;
        float sum = 0.0f, v[8], gate[8];
#pragma unroll 2
        for (u32 col = 8 * lane; col < width; col += 256) {
            read_gated(p, row, first + col, v, gate);
#pragma unroll
            for (int k = 0; k < 8; k++) sum += v[k] * v[k];
        }
        float inverse = 1.0f / sqrtf(warp_sum(sum) / float(width) + p.eps);
        for (u32 col = 8 * lane; col < width; col += 256) {
            read_gated(p, row, first + col, v, gate);
            uint4 out;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float* gain = p.gain + first + col + 2 * k;
                (&out.x)[k] = f32_bf16x2(v[2 * k] * inverse * gain[0] * gate[2 * k],
                                         v[2 * k + 1] * inverse * gain[1] * gate[2 * k + 1]);
            }
            staging[row * pitch + staged<FORMAT>((first + col) / 8)] = out;
        }
    }
    // What pads a row.
    for (u32 i = threadIdx.x; i < p.rows * (pitch - p.w.cols / 8); i += VEC_THREADS) {
        u32 padding = pitch - p.w.cols / 8;
        staging[i / padding * pitch + staged<FORMAT>(p.w.cols / 8 + i % padding)] = make_uint4(0, 0, 0, 0);
    }
}

struct Stage {
    const GatedProduct& p;
    template <int FORMAT>
    __device__ inline void fill(uint4* staging) const {
        for (u32 i = threadIdx.x * 8; i < p.w.cols; i += VEC_THREADS * 8) prefetch(p.gain + i);
        await_previous();
        stage_gated<FORMAT>(p, staging);
    }
};

extern "C" __global__ void __launch_bounds__(256, 4) gated_norm_matmul(const __grid_constant__ GatedProduct p) {
    extern __shared__ uint4 memory[];
    __shared__ alignas(16) char ring[VEC_RING];
    __shared__ float partial[2 * VEC_THREADS];
    release_next();
    Stage stage = {p};
    Groups groups = {blockIdx.x, gridDim.x, p.groups, p.splits};
    product_any<1>(p.w, 0, groups, p.rows, memory, ring, partial, stage, [&](u32 output, u32 row, float v) {
        store(p.out, row, output, v + (p.bias ? p.bias[output] : 0.0f), p.how);
    });
}
