// Products of few rows: the weight is read once, straight to registers, ahead of the activations that it meets.
//
// A tile is 8 outputs. A warp's step takes 128 stored bytes of each of its rows: lane (g = lane / 4, t = lane % 4) holds
// two 16-byte pieces of output g, 64 bytes apart. They are rows g and g + 8 of the A operand of mma.m16n8k16, and column n
// of B is row n / 2 of the batch at the columns of piece n % 2: so one instruction meets 8 outputs with up to 4 rows, and
// of the sums the first and the last of a lane's four count. Steps of a tile are dealt over `splits` warps of a block,
// whose sums are joined in order. Sums are f32.
#pragma once
#include "common_mma.cuh"

constexpr u32 VEC_WARPS = 8, VEC_THREADS = 32 * VEC_WARPS;
constexpr int DEPTH = 4;  // steps of a warp on their way at once

// Pieces of 8 columns of activations that one 16-byte piece of the weight meets.
template <int FORMAT>
constexpr u32 PARTS = COLUMNS<FORMAT> / 8;

// ---- the weight

// A warp's share of one tile, from step `first` on in strides of `stride` steps.
template <int FORMAT>
struct Share {
    const u8* data;
    const u8* scales;
    u32 cols;
    uint4 pieces[DEPTH][2];
    u32 blocks[DEPTH][2];

    __device__ inline void open(const Bank& w, u32 expert, u32 output) {
        u32 lane = threadIdx.x % 32;
        u64 line = u64(expert) * w.rows + min(output + lane / 4, w.rows - 1);
        cols = w.cols;
        data = w.data + line * (u64(cols) * 16 / COLUMNS<FORMAT>) + lane % 4 * 16;
        scales = w.scales + line * (cols / 16) + lane % 4 * 2;
    }

    // Columns before step `step`.
    static __device__ inline u32 column(u32 step) { return step * 8 * COLUMNS<FORMAT>; }

    __device__ inline void load(u32 first, u32 stride) {
        u32 t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            u32 step = first + i * stride;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                bool inside = column(step) + (h * 4 + t) * COLUMNS<FORMAT> < cols;
                pieces[i][h] = inside ? load_once(data + step * 128 + h * 64) : make_uint4(0, 0, 0, 0);
                if (FORMAT == W_NVFP4) {
                    blocks[i][h] = inside ? *reinterpret_cast<const u16*>(scales + step * 16 + h * 8) : 0;
                }
            }
        }
    }

    // Meets the steps that were loaded with 4 * NT rows; `x(step, part, j)` gives a lane its 8 columns of row g / 2 + 4 j.
    template <int NT, class X>
    __device__ inline void multiply(u32 first, u32 stride, float (*sums)[4], X x) const {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            u32 step = first + i * stride;
            if (column(step) >= cols) break;
#pragma unroll
            for (int part = 0; part < PARTS<FORMAT>; part++) {
                uint4 rows[NT];
#pragma unroll
                for (int j = 0; j < NT; j++) rows[j] = x(step, part, j);
                u32 low[4], high[4], a[4];
                const int words = 4 / PARTS<FORMAT> * part;
                dequantise<FORMAT>(&pieces[i][0].x + words, block_scale(u8(blocks[i][0] >> (part / 2 * 8))), low);
                dequantise<FORMAT>(&pieces[i][1].x + words, block_scale(u8(blocks[i][1] >> (part / 2 * 8))), high);
#pragma unroll
                for (int q = 0; q < 2; q++) {
                    fragment(low, high, q, a);
#pragma unroll
                    for (int j = 0; j < NT; j++) mma(sums[j], a, (&rows[j].x)[2 * q], (&rows[j].x)[2 * q + 1]);
                }
            }
        }
    }
};

// ---- staged activations: pieces of 8 bf16 columns in shared memory, in the order in which lanes read them

// Pieces of one staged row.
template <int FORMAT>
__device__ inline u32 row_pieces(u32 cols) {
    return (cols + 8 * COLUMNS<FORMAT> - 1) / (8 * COLUMNS<FORMAT>) * 8 * PARTS<FORMAT>;
}

// Where columns 8 * piece .. + 7 of a row lie.
template <int FORMAT>
__device__ inline u32 staged(u32 piece) {
    constexpr u32 P = PARTS<FORMAT>;
    return piece / (8 * P) * (8 * P) + piece % P * 8 + piece / P % 8;
}

// Stages `count` rows of bf16 that lie `row(i)` apart in memory, zeros past `cols`.
template <int FORMAT, class ROW>
__device__ inline void stage_rows(uint4* staging, u32 count, u32 cols, ROW row) {
    u32 pitch = row_pieces<FORMAT>(cols);
    for (u32 i = threadIdx.x; i < count * pitch; i += VEC_THREADS) {
        u32 piece = i % pitch;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (8 * piece < cols) v = *reinterpret_cast<const uint4*>(row(i / pitch) + 8 * piece);
        staging[i / pitch * pitch + staged<FORMAT>(piece)] = v;
    }
}

// ---- blocks

// What a block works through: tile groups `first, first + stride, ..` below `end`, each of VEC_WARPS / splits tiles.
struct Groups {
    u32 first, stride, end, splits;
};

// Joins the sums of a group's splits and hands them to `put(output, row, value)`; rows are below 4 * NT.
template <int NT, class PUT>
__device__ inline void join(const float (*sums)[4], u32 splits, u32 group, u32 outputs, float* partial, PUT put) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = VEC_WARPS / splits;
#pragma unroll
    for (int j = 0; j < NT; j++) partial[(warp * NT + j) * 32 + lane] = sums[j][0] + sums[j][3];
    __syncthreads();
    for (u32 i = threadIdx.x; i < tiles * NT * 32; i += VEC_THREADS) {
        u32 tile = i / (NT * 32), place = i % (NT * 32), output = (group * tiles + tile) * 8 + place % 32 / 4;
        float sum = 0.0f;
        for (u32 s = 0; s < splits; s++) sum += partial[(tile * splits + s) * NT * 32 + place];
        if (output < outputs) put(output, place / 32 * 4 + place % 4, sum);
    }
    __syncthreads();
}

// out = x weight^T for up to 4 * NT rows. `stage.fill<FORMAT>(staging)` waits for the kernels before and fills the staged rows; a
// lane's rows past `count` are zero. `partial` holds VEC_WARPS * NT * 32 floats.
template <int FORMAT, int NT, class STAGE, class PUT>
__device__ inline void product_of(const Bank& w, u32 expert, const Groups& groups, u32 count, uint4* staging,
                                  float* partial, const STAGE& stage, PUT put) {
    u32 lane = threadIdx.x % 32, g = lane / 4, warp = threadIdx.x / 32;
    u32 splits = groups.splits, sub = warp % splits, tiles = VEC_WARPS / splits, pitch = row_pieces<FORMAT>(w.cols);
    float factor = w.scale[expert] * FACTOR<FORMAT>;
    Share<FORMAT> share;
    share.open(w, expert, (groups.first * tiles + warp / splits) * 8);
    share.load(sub, splits);
    stage.template fill<FORMAT>(staging);
    __syncthreads();
    const uint4* mine = staging + g / 2 * pitch + g % 2 * 4 + lane % 4;
    auto x = [&](u32 step, u32 part, u32 j) {
        if (g / 2 + 4 * j >= count) return make_uint4(0, 0, 0, 0);
        return mine[4 * j * pitch + (step * PARTS<FORMAT> + part) * 8];
    };
    float sums[NT][4] = {};
    for (u32 group = groups.first, step = sub; group < groups.end;) {
        share.template multiply<NT>(step, splits, sums, x);
        step += splits * DEPTH;
        u32 tile = group;
        if (share.column(step - sub) >= w.cols) {
            group += groups.stride;
            step = sub;
            if (group < groups.end) share.open(w, expert, (group * tiles + warp / splits) * 8);
        }
        // The next steps are on their way while the sums of a finished tile are joined.
        if (group < groups.end) share.load(step, splits);
        if (group == tile) continue;
        join<NT>(sums, splits, tile, w.rows, partial, [&](u32 output, u32 row, float v) {
            if (row < count) put(output, row, v * factor);
        });
#pragma unroll
        for (int j = 0; j < NT; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
    }
}

// The same for an f32 weight on the plain units: a warp takes one output, so a group is VEC_WARPS outputs.
template <int NT, class STAGE, class PUT>
__device__ inline void product_f32(const Bank& w, const Groups& groups, u32 count, uint4* staging, const STAGE& stage, PUT put) {
    constexpr int AHEAD = 8;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = row_pieces<W_BF16>(w.cols);
    const float* data = reinterpret_cast<const float*>(w.data);
    uint4 early[AHEAD];
    auto load = [&](u32 output, u32 first) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            u32 col = first + (i * 32 + lane) * 4;
            early[i] = col < w.cols ? load_once(data + u64(min(output, w.rows - 1)) * w.cols + col) : make_uint4(0, 0, 0, 0);
        }
    };
    load(groups.first * VEC_WARPS + warp, 0);
    stage.template fill<W_BF16>(staging);
    __syncthreads();
    for (u32 group = groups.first; group < groups.end; group += groups.stride) {
        u32 output = group * VEC_WARPS + warp;
        if (group != groups.first) load(output, 0);
        float sums[4 * NT] = {};
        for (u32 first = 0; first < w.cols; first += AHEAD * 128) {
            if (first > 0) load(output, first);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                u32 col = first + (i * 32 + lane) * 4;
                if (col >= w.cols) break;
#pragma unroll
                for (int r = 0; r < 4 * NT; r++) {
                    if (r >= count) break;
                    uint2 x = reinterpret_cast<const uint2*>(staging + r * pitch + col / 8)[col / 4 % 2];
                    sums[r] += bits_f32(early[i].x) * bits_f32(x.x << 16) + bits_f32(early[i].y) * bits_f32(x.x & 0xffff0000u);
                    sums[r] += bits_f32(early[i].z) * bits_f32(x.y << 16) + bits_f32(early[i].w) * bits_f32(x.y & 0xffff0000u);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 4 * NT; r++) {
            float sum = warp_sum(sums[r]);
            if (lane == 0 && r < count && output < w.rows) put(output, r, sum);
        }
    }
}

// Either, by the weight's format.
template <int NT, class STAGE, class PUT>
__device__ inline void product_any(const Bank& w, u32 expert, const Groups& groups, u32 count, uint4* staging,
                                   float* partial, const STAGE& stage, PUT put) {
    if (w.format == W_NVFP4) product_of<W_NVFP4, NT>(w, expert, groups, count, staging, partial, stage, put);
    else if (w.format == W_BF16) product_of<W_BF16, NT>(w, expert, groups, count, staging, partial, stage, put);
    else if (w.format == W_FP8) product_of<W_FP8, NT>(w, expert, groups, count, staging, partial, stage, put);
}
