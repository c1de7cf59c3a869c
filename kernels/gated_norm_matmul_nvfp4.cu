// out (+)= gated_rms_norm(y, z) weight^T + bias for up to NT rows of bf16 (common_nvfp4.cuh).
//
// y, z [rows, inputs] bf16, gain [inputs] f32, norm groups of whole blocks of 16, weight [outputs, inputs] in NVFP4. Every
// block norms the rows for itself, two warps a group: they come from the cache, while its weights come from memory. The
// norm's factor joins the staged powers of two. A block takes the tiles of 8 outputs that lie gridDim.x apart.
#include "common_gated.cuh"
#include "common_nvfp4_stream.cuh"

// Stages one warp's share of a group of a row, and returns its squares.
__device__ inline float stage_group(const GatedProduct& p, const Staging& staging, u32 row, u32 group, u32 first, u32 stride) {
    u32 eights = p.w.cols / p.norm_groups / 8, start = group * eights;
    const u16* ys = reinterpret_cast<const u16*>(p.y.data) + row * p.y.stride;
    const u16* zs = reinterpret_cast<const u16*>(p.z.data) + row * p.z.stride;
    float sum = 0.0f;
    for (u32 i = first; i - threadIdx.x % 32 < eights; i += stride) {
        float y[8] = {}, z[8] = {}, gain[8] = {};
        bool there = i < eights;
        if (there) {
            read_eight(ys + (start + i) * 8, y);
            read_eight(zs + (start + i) * 8, z);
            read_eight(p.gain + (start + i) * 8, gain);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float gated = y[k] * quick_silu(z[k]), normed = p.gate_first ? gated : y[k];
            sum += normed * normed;
            y[k] = gated * gain[k];
        }
        stage_eight(staging, row, start + i, y, 1.0f, there);
    }
    return warp_sum(sum);
}

// SHARES warps of a block norm one group.
template <int NT>
__device__ inline void stage_all(const GatedProduct& p, const Staging& staging) {
    constexpr u32 SHARES = 2, TEAMS = WARPS / SHARES;
    __shared__ float squares[WARPS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, eights = p.w.cols / p.norm_groups / 8;
    for (u32 base = 0; base < p.rows * p.norm_groups; base += TEAMS) {
        u32 i = base + warp / SHARES, row = i / p.norm_groups, group = i % p.norm_groups, first = warp % SHARES * 32 + lane;
        bool there = i < p.rows * p.norm_groups;
        float sum = there ? stage_group(p, staging, row, group, first, 32 * SHARES) : 0.0f;
        if (lane == 0) squares[warp] = sum;
        __syncthreads();
        float all = squares[warp / SHARES * SHARES] + squares[warp / SHARES * SHARES + 1];
        float inverse = 1.0f / sqrtf(all / float(8 * eights) + p.eps);
        for (u32 k = first; there && k < eights; k += 32 * SHARES) {
            if (k % 2 == 0) staging.terms(row, (group * eights + k) / 2)->y *= inverse;
        }
        __syncthreads();
    }
}

template <int NT>
__device__ inline void gated_product(const GatedProduct& p) {
    extern __shared__ __align__(16) char memory[];
    release_next();
    Tiles<8> tiles(p.w);
    Staging staging = {memory + WARPS * STAGES * STEP, row_pitch<8>(p.w.cols), NT};
    Sums<8, NT> sums = {reinterpret_cast<float*>(staging.bytes + NT * (staging.pitch + staging.pitch / 4)), tiles.count};
    Feed<8, Tiles<8>> feed(tiles, memory);
    feed.prime();
    sums.clear();
    // What pads a row, and rows that are not there.
    u32 eights = p.w.cols / 8, padded = staging.eights();
    by_warps(p.rows < NT || padded > eights ? NT * padded : 0, [&](u32 i) {
        float none[8] = {};
        bool empty = i / padded >= p.rows || i % padded >= eights;
        stage_eight(staging, i / padded, i % padded, none, 1.0f, empty && i < NT * padded);
    });
    await_previous();
    u32 items = tiles.count * NT * 8, mine = threadIdx.x;
    u32 slot = mine / 8 % max(tiles.count, 1u), row = mine / 8 / max(tiles.count, 1u);
    u32 output = tiles.output(slot) + mine % 8;
    bool there = mine < items && row < p.rows && output < p.w.rows;
    float before = p.how.accumulate && there ? load(p.out, row, output) : 0.0f;
    stage_all<NT>(p, staging);
    multiply<8, NT>(feed, staging, sums);
    if (!there) return;
    float v = sums.joined(slot, row, mine % 8) * (p.w.scale[0] * FACTOR);
    v += p.bias ? p.bias[output] : 0.0f;
    store(p.out, row, output, p.how.accumulate ? before + p.how.scale * v : v);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gated_norm_matmul_nvfp4_1(const __grid_constant__ GatedProduct p) {
    gated_product<1>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) gated_norm_matmul_nvfp4_2(const __grid_constant__ GatedProduct p) {
    gated_product<2>(p);
}
