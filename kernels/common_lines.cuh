// Products of few rows on the plain units, for F32 and BF16 weights of one matrix: a warp takes one output, 512 bytes of it a
// load, the first AHEAD loads while the rows are staged. So the memory sees whole lines only, in streams of one output after
// the other.
#pragma once
#include "common_vec.cuh"

// Adds the products of one 16-byte piece of an F32 or BF16 weight with the same columns of a row of bf16 in its own order.
template <int FORMAT>
__device__ inline float meet_piece(const uint4& weights, const uint4* row, u32 piece, float sum) {
    if (FORMAT == W_F32) {
        uint2 x = reinterpret_cast<const uint2*>(row)[piece];
        sum += bits_f32(weights.x) * bits_f32(x.x << 16) + bits_f32(weights.y) * bits_f32(x.x & 0xffff0000u);
        return sum + (bits_f32(weights.z) * bits_f32(x.y << 16) + bits_f32(weights.w) * bits_f32(x.y & 0xffff0000u));
    }
    uint4 x = row[piece];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 a = (&weights.x)[i], b = (&x.x)[i];
        sum += bits_f32(a << 16) * bits_f32(b << 16);
        sum += bits_f32(a & 0xffff0000u) * bits_f32(b & 0xffff0000u);
    }
    return sum;
}

// out = x weight^T for up to 4 * NT rows, as `product_of` has it; groups are of VEC_WARPS outputs.
template <int FORMAT, int NT, class STAGER, class PUT>
__device__ inline void product_lines(const Bank& w, const Groups& groups, u32 count, uint4* staging, const STAGER& stager, PUT put) {
    static_assert(FORMAT == W_F32 || FORMAT == W_BF16, "numbers that need no scale");
    constexpr int AHEAD = FORMAT == W_F32 ? 4 : 6, COLS = FORMAT == W_F32 ? 4 : 8;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = row_pieces<W_BF16>(w.cols), pieces = w.cols / COLS;
    const uint4* data = reinterpret_cast<const uint4*>(w.data) + lane;
    uint4 early[AHEAD];
    auto load = [&](u32 output, u32 first) {
        const uint4* from = data + u64(min(output, w.rows - 1)) * pieces + first;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            early[i] = first + i * 32 + lane < pieces ? load_once(from + i * 32) : make_uint4(0, 0, 0, 0);
        }
    };
    load(groups.first * VEC_WARPS + warp, 0);
    stager.template fill<W_BF16>(staging);
    __syncthreads();
    for (u32 group = groups.first; group < groups.end; group += groups.stride) {
        u32 output = group * VEC_WARPS + warp;
        float sums[4 * NT] = {};
        for (u32 first = 0; first < pieces; first += AHEAD * 32) {
            if (first > 0 || group != groups.first) load(output, first);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                u32 piece = first + i * 32 + lane;
                if (piece >= pieces) break;
#pragma unroll
                for (int r = 0; r < 4 * NT; r++) {
                    if (r >= count) break;
                    sums[r] = meet_piece<FORMAT>(early[i], staging + r * pitch, piece, sums[r]);
                }
            }
        }
        // A lane a row, so that `put` stands here once.
        float mine = 0.0f;
#pragma unroll
        for (int r = 0; r < 4 * NT; r++) {
            float sum = warp_sum(sums[r]);
            if (lane == r) mine = sum;
        }
        if (lane < count && output < w.rows) put(output, lane, FORMAT == W_BF16 ? mine * w.scale[0] : mine);
    }
}
