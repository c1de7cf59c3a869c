// What a phase's products meet, into shared memory: integers for NVFP4 weights (common_nvfp4.cuh), bf16 for BF16 ones.
#pragma once
#include "common_gated.cuh"
#include "common_program_ring.cuh"

struct Desk {
    u32 format;
    char* bytes;
    Staging integers;

    __device__ inline Desk(const Products& p, char* area)
        : format(p.format), bytes(area + p.x_place), integers({area + p.x_place, p.length * span_of(p.format), 1}) {}

    // Whole steps have so many eights of columns.
    __device__ inline u32 eights() const { return integers.pitch / 16; }

    // All lanes of the warp call; see stage_eight.
    __device__ inline void put(u32 eight, const float* v, float factor, bool there) const {
        if (format != W_BF16) return stage_eight(integers, 0, eight, v, factor, there);
        if (!there) return;
        uint4 out;
#pragma unroll
        for (int k = 0; k < 4; k++) (&out.x)[k] = f32_bf16x2(v[2 * k] * factor, v[2 * k + 1] * factor);
        reinterpret_cast<uint4*>(bytes)[eight] = out;
    }
};

// A norm of up to 8 * THREADS columns, eight a thread, and the F32 unit's product, of which a block has one output at most.
struct Norm {
    const Products& p;
    u32 first;  // of this thread's columns
    bool there;
    float gain[8], weight[8], v[8];

    __device__ inline explicit Norm(const Products& of) : p(of), first(threadIdx.x * 8), there(false) {
        if (p.staged != NORM) return;
        there = first < p.x.cols;
        if (!there) return;
        read_eight(p.gain + first, gain);
        if (has_plain()) read_eight(reinterpret_cast<const float*>(p.unit[p.plain].w.data) + u64(blockIdx.x) * p.x.cols + first, weight);
    }
    __device__ inline bool has_plain() const { return p.plain < 4 && blockIdx.x < p.unit[p.plain].w.rows; }

    // Stages x times gain; the norm's factor joins the sums at the end.
    __device__ inline void stage(const Desk& desk, Kept& kept) {
        float squares = 0.0f, plain = 0.0f;
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = 0.0f;
        if (there) read_eight(reinterpret_cast<const float*>(p.x.data) + first, v);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            squares += v[k] * v[k];
            v[k] = there ? v[k] * gain[k] : 0.0f;
        }
        if (has_plain() && there) {
#pragma unroll
            for (int k = 0; k < 8; k++) plain += v[k] * weight[k];
        }
        if (threadIdx.x - threadIdx.x % 32 < desk.eights()) desk.put(threadIdx.x, v, 1.0f, threadIdx.x < desk.eights());
        squares = warp_sum(squares);
        plain = warp_sum(plain);
        if (threadIdx.x % 32 != 0) return;
        kept.squares[threadIdx.x / 32] = squares;
        kept.plain[threadIdx.x / 32] = plain;
    }

    // The block's share of the normed row, for phases that read it.
    __device__ inline void keep(float inverse) const {
        if (!p.keep || !there || threadIdx.x % gridDim.x != blockIdx.x) return;
        uint4 out;
#pragma unroll
        for (int k = 0; k < 4; k++) (&out.x)[k] = f32_bf16x2(v[2 * k] * inverse, v[2 * k + 1] * inverse);
        reinterpret_cast<uint4*>(p.normed.data)[threadIdx.x] = out;
    }
};

// silu(z) times the norm of y, two warps a group; groups are whole blocks of 16. The first eight of a lane stays in its
// registers until the norm is known, others are read again.
constexpr u32 SHARES = 2, TEAMS = WARPS / SHARES;

struct Gated {
    const Products& p;
    u32 eights, share;
    u32 known;  // the eight whose z and gain are there
    uint4 z;
    float gain[8];

    // `early`: whether z was there before the last phase.
    __device__ inline Gated(const Products& of, bool early)
        : p(of), eights(0), share(threadIdx.x / 32 % SHARES * 32 + threadIdx.x % 32), known(ALL) {
        if (p.staged != GATED) return;
        eights = over(p.x.cols / 8, p.norm_groups);
        u32 group = threadIdx.x / 32 / SHARES;
        if (!early || share >= eights || group >= p.norm_groups) return;
        known = group * eights + share;
        z = z_of(known);
        read_eight(p.gain + known * 8, gain);
    }
    __device__ inline uint4 z_of(u32 eight) const {
        return *reinterpret_cast<const uint4*>(reinterpret_cast<const u16*>(p.z.data) + eight * 8);
    }

    // silu(z) y gain, and the squares that go into the norm.
    __device__ inline float gate(u32 eight, float* v) {
        float gates[8], sum = 0.0f;
        read_eight(reinterpret_cast<const u16*>(p.x.data) + eight * 8, v);
        if (eight != known) {
            z = z_of(eight);
            read_eight(p.gain + eight * 8, gain);
            known = eight;
        }
        widen_eight(z, gates);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float gated = v[k] * quick_silu(gates[k]), normed = p.gate_first ? gated : v[k];
            sum += normed * normed;
            v[k] = gated * gain[k];
        }
        return sum;
    }

    __device__ inline void stage(const Desk& desk, float* squares) {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
        for (u32 base = 0; base < p.norm_groups; base += TEAMS) {
            u32 group = base + warp / SHARES, start = group * eights, count = group < p.norm_groups ? eights : 0;
            float v[8] = {}, sum = 0.0f, inverse = 0.0f;
            // Sums from the last eight to the first, stages from the first to the last.
            u32 turns = (count + 32 * SHARES - 1 - (share - lane)) / (32 * SHARES);
#pragma unroll 1
            for (u32 i = 0; i < 2 * turns || i == 0; i++) {
                bool stages = i >= turns;
                if (i == turns) {
                    sum = warp_sum(sum);
                    if (lane == 0) squares[warp] = sum;
                    __syncthreads();
                    float all = squares[warp / SHARES * SHARES] + squares[warp / SHARES * SHARES + 1];
                    inverse = rsqrtf(all / float(8 * eights) + p.eps);
                }
                u32 at = share + (stages ? i - turns : turns - 1 - i) * 32 * SHARES;
                if (i != turns && at < count) sum += gate(start + at, v);
                if (stages && at - lane < count) desk.put(start + at, v, inverse, at < count);
            }
            __syncthreads();
        }
        // What pads the row to whole steps.
        float none[8] = {};
        for (u32 eight = p.x.cols / 8 + threadIdx.x; eight - lane < desk.eights(); eight += THREADS) {
            desk.put(eight, none, 1.0f, eight < desk.eights());
        }
    }
};

// What products with a chain's matrices are worth in their sum; there is a barrier before they are read.
__device__ inline void weigh_chain(const Products& p, Kept& kept) {
    u32 i = threadIdx.x;
    if (!p.chained) return;
    if (i < p.chained) kept.factor[i] = kept.weight[i] * p.unit[0].w.scale[kept.chosen[i]];
    else if (i == p.chained && p.chained * p.steps < p.length) kept.factor[i] = p.unit[1].w.scale[0];
}

// Eight bf16 of row `row` of the staged ones, which a chain has one of for each matrix.
__device__ inline uint4 eight_of(const Products& p, u32 row, u32 col) {
    const Window& from = p.chained && row == p.chained ? p.z : p.x;
    if (col >= from.cols) return make_uint4(0, 0, 0, 0);
    u64 at = row == p.chained ? 0 : u64(row) * from.stride;
    return *reinterpret_cast<const uint4*>(reinterpret_cast<const u16*>(from.data) + at + col);
}

// Stages rows of bf16, one for each matrix of a chain. Integers take what the matrix is worth with them; bf16 would round it.
__device__ inline void stage_rows(const Products& p, const Desk& desk, const Kept& kept) {
    constexpr u32 AHEAD = 2;
    u32 shift = eights_shift(p.format), all = desk.eights();
    for (u32 base = threadIdx.x; base - threadIdx.x % 32 < all; base += AHEAD * THREADS) {
        uint4 eights[AHEAD];
        float factor[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            u32 eight = base + i * THREADS, row = p.chained ? min(over(eight >> shift, p.steps), p.chained) : 0;
            bool there = eight < all;
            eights[i] = make_uint4(0, 0, 0, 0);
            if (there) eights[i] = eight_of(p, row, (eight - (row * p.steps << shift)) * 8);
            factor[i] = p.chained && p.format != W_BF16 && there ? kept.factor[row] : 1.0f;
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            u32 eight = base + i * THREADS;
            float v[8];
            widen_eight(eights[i], v);
            if (eight - threadIdx.x % 32 < all) desk.put(eight, v, factor[i], eight < all);
        }
    }
}
