// Products on the tensor cores with the weight dequantised in registers, for bf16 activations.
//
// The weight is the A operand of mma.m16n8k16 (16 outputs by 16 columns), the activations are B (8 rows), so that the
// same dequantised fragment serves every row of the batch. Which column stands at which k of the instruction is free as
// long as both operands agree: lane (g = lane / 4, t = lane % 4) takes, for its outputs g and g + 8 and its row g, runs of
// consecutive columns, four for each instruction. So a lane's share is one 16-byte load. Sums are f32.
//
// E2M1 and E4M3 values times a block scale are exact in bf16. NVFP4 fragments come out smaller by 2^8, which the
// output's factor puts back.
#pragma once
#include "common.cuh"

// a * b on both bf16 halves; -0 is what an addition leaves unchanged.
__device__ inline u32 multiply(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}

// Columns of 16 stored bytes.
template <int FORMAT>
constexpr int COLUMNS = FORMAT == W_NVFP4 ? 32 : FORMAT == W_FP8 ? 16 : 8;

template <int FORMAT>
constexpr float FACTOR = FORMAT == W_NVFP4 ? 256.0f : 1.0f;

// An E4M3 block scale times 2^118 in both halves.
__device__ inline u32 block_scale(u8 byte) {
    float v = f16_f32(u16((byte & 0x80) << 8 | (byte & 0x7f) << 7)) * 0x1p126f;
    return f32_bf16x2(v, v);
}

// The same of one whose sign is with the codes, by fewer instructions.
__device__ inline u32 scale_pair(u32 byte) {
    return multiply(multiply(byte * 0x00100010u, 0x7f007f00u), 0x77007700u);
}

// Columns 0..7 of one word (NVFP4), or of 2 (FP8) or 4 (BF16) words, as 4 registers of two columns.
template <int FORMAT>
__device__ inline void dequantise(const u32* words, u32 scale, u32* out) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (FORMAT == W_BF16) {
            out[j] = words[j];
        } else if (FORMAT == W_FP8) {
            u32 v = __byte_perm(words[j / 2], 0, j % 2 ? 0x3424 : 0x1404);
            // E4M3 in the place of bf16 is smaller by 2^120.
            out[j] = multiply((v & 0x80008000u) | (v >> 4 & 0x07f007f0u), 0x7b807b80u);
        } else {
            u32 v = words[0] << (12 - 4 * j);
            // E2M1 in the place of bf16 is smaller by 2^126.
            out[j] = multiply((v & 0x80008000u) | (v >> 6 & 0x01c001c0u), scale);
        }
    }
}

// The four registers of an A fragment for columns 4q .. 4q + 3 of two outputs.
__device__ inline void fragment(const u32* low, const u32* high, int q, u32* a) {
    a[0] = low[2 * q];
    a[1] = high[2 * q];
    a[2] = low[2 * q + 1];
    a[3] = high[2 * q + 1];
}

__device__ inline uint4 load_once(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// A load that stays where it is written, ahead of its use.
__device__ inline uint4 load_early(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// ---- few rows: one pass over the weight, 16 outputs a block, columns dealt over its warps

// Where a block's activations are: rows of bf16, `stride` elements apart.
struct Rows {
    const u16* data;
    u64 stride;
    u32 count;
};

// The sum for output `first + m` and row n lands in memory[(n / 8 * 4 + (m / 8 * 2 + n % 2)) * 32 + m % 8 * 4 + n % 8 / 2]
// after a __syncthreads; `memory` holds warps * NT * 128 floats.
template <int FORMAT, int NT>
__device__ inline void product_vec(const Bank& w, u32 expert, u32 first, const Rows& x, float* memory) {
    constexpr int COLS = COLUMNS<FORMAT>, AHEAD = FORMAT == W_BF16 ? 4 : 2, PER_ROW = COLS * 4;
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u64 matrix = u64(expert) * w.rows;
    u32 line[2];
    const u8* data[2];
    for (int i = 0; i < 2; i++) {
        line[i] = min(first + g + 8 * i, w.rows - 1);
        data[i] = w.data + (matrix + line[i]) * (u64(w.cols) * 16 / COLS);
    }
    float sums[NT][4] = {};
    for (u32 chunk = warp * AHEAD; chunk * PER_ROW < w.cols; chunk += warps * AHEAD) {
        uint4 pieces[AHEAD][2], early[AHEAD][COLS / 8];
        u32 scales[AHEAD][2];
        auto row_piece = [&](int i, int part, int j) {
            u32 row = 8 * j + g, col = (chunk + i) * PER_ROW + t * COLS;
            if (row >= x.count || col >= w.cols) return make_uint4(0, 0, 0, 0);
            return load_early(x.data + row * x.stride + col + 8 * part);
        };
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            u32 col = (chunk + i) * PER_ROW + t * COLS;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                pieces[i][r] = make_uint4(0, 0, 0, 0);
                scales[i][r] = 0;
                if (col >= w.cols) continue;
                if (FORMAT == W_NVFP4) {
                    u64 place = scale_place(w, matrix, line[r], col / 16);
                    pieces[i][r] = load_once(w.data + 8 * place);
                    scales[i][r] = *reinterpret_cast<const u16*>(w.scales + place);
                } else {
                    pieces[i][r] = load_once(data[r] + u64(col) * 16 / COLS);
                }
            }
            // The rows of one product are few enough to be on their way together with the weight.
#pragma unroll
            for (int part = 0; part < COLS / 8; part++) {
                if (NT == 1) early[i][part] = row_piece(i, part, 0);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int part = 0; part < COLS / 8; part++) {
                uint4 rows[NT];
#pragma unroll
                for (int j = 0; j < NT; j++) rows[j] = NT == 1 ? early[i][part] : row_piece(i, part, j);
                u32 low[4], high[4], a[4];
                const int words = 4 / (COLS / 8) * part;
                u32 scale_low = block_scale(u8(scales[i][0] >> (part / 2 * 8)));
                u32 scale_high = block_scale(u8(scales[i][1] >> (part / 2 * 8)));
                dequantise<FORMAT>(&pieces[i][0].x + words, scale_low, low);
                dequantise<FORMAT>(&pieces[i][1].x + words, scale_high, high);
#pragma unroll
                for (int q = 0; q < 2; q++) {
                    fragment(low, high, q, a);
#pragma unroll
                    for (int j = 0; j < NT; j++) mma(sums[j], a, (&rows[j].x)[2 * q], (&rows[j].x)[2 * q + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) memory[((warp * NT + j) * 4 + c) * 32 + lane] = sums[j][c];
    }
    __syncthreads();
}

// Hands every sum of product_vec to `store(output, row, value)`.
template <int NT, class S>
__device__ inline void finish_vec(u32 first, u32 outputs, u32 rows, float factor, const float* memory, S store) {
    for (u32 place = threadIdx.x; place < NT * 128; place += blockDim.x) {
        u32 lane = place % 32, c = place / 32 % 4, j = place / 128;
        u32 output = first + lane / 4 + c / 2 * 8, row = 8 * j + lane % 4 * 2 + c % 2;
        if (output >= outputs || row >= rows) continue;
        float sum = 0.0f;
        for (u32 warp = 0; warp < blockDim.x / 32; warp++) sum += memory[warp * NT * 128 + place];
        store(output, row, sum * factor);
    }
}

// ---- many rows: tiles of outputs by rows, 64 columns a stage, copied ahead

template <int FORMAT, int MT, int NT, int WM, int WN>
struct Tile {
    static constexpr int OUTPUTS = 16 * MT * WM, ROWS = 8 * NT * WN, THREADS = 32 * WM * WN;
    static constexpr int STAGES = FORMAT == W_BF16 ? 2 : 3;
    static constexpr int X_PITCH = 144;  // bytes of a row's 64 columns, shifted by one piece so that banks differ
    static constexpr int W_BYTES = 64 * 16 / COLUMNS<FORMAT>, W_PITCH = FORMAT == W_BF16 ? 144 : W_BYTES;
    static constexpr int STAGE = ROWS * X_PITCH + OUTPUTS * W_PITCH;

    // sums[m][n] of this warp; `sources[i]` is the row of x for row i of the tile, or PADDING.
    static __device__ inline void run(const Bank& w, u32 expert, u32 first, const Window& x, const u32* sources,
                                      char* memory, float (*sums)[NT][4]) {
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
        u32 out = warp % WM * 16 * MT, row = warp / WM * 8 * NT, steps = (w.cols + 63) / 64;
        u32 base = shared_address(memory);
        u64 matrix = u64(expert) * w.rows;
        auto fetch = [&](u32 step) {
            u32 stage = base + step % STAGES * STAGE;
            for (u32 i = threadIdx.x; i < ROWS * 8; i += THREADS) {
                u32 source = sources[i / 8], col = step * 64 + i % 8 * 8;
                bool there = source != PADDING && col < w.cols;
                const char* from = x.data + (there ? (source * x.stride + col) * 2 : 0);
                copy_async(stage + i / 8 * X_PITCH + i % 8 * 16, from, there ? 16 : 0);
            }
            constexpr int PIECES = W_BYTES / 16;
            for (u32 i = threadIdx.x; i < OUTPUTS * PIECES; i += THREADS) {
                u32 col = step * 64 + i % PIECES * COLUMNS<FORMAT>;
                u32 line = min(first + i / PIECES, w.rows - 1);
                bool there = col < w.cols;
                auto place = [&]() {
                    if (FORMAT == W_NVFP4) return code_place(w, matrix, line, col / 16);
                    return ((matrix + line) * w.cols + col) * 16 / COLUMNS<FORMAT>;
                };
                const u8* from = w.data + (there ? place() : 0);
                copy_async(stage + ROWS * X_PITCH + i / PIECES * W_PITCH + i % PIECES * 16, from, there ? 16 : 0);
            }
        };
        u8 scales[2 * MT];
        auto fetch_scales = [&](u32 step) {
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                u32 block = step * 4 + t;
                u32 line = min(first + out + 8 * i + g, w.rows - 1);
                scales[i] = block < w.cols / 16 ? w.scales[scale_place(w, matrix, line, block)] : 0;
            }
        };
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (stage < steps) fetch(stage);
            copy_commit();
        }
        if (FORMAT == W_NVFP4) fetch_scales(0);
        for (u32 step = 0; step < steps; step++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            if (step + STAGES - 1 < steps) fetch(step + STAGES - 1);
            copy_commit();
            u32 scale[2 * MT] = {};
            if (FORMAT == W_NVFP4) {
#pragma unroll
                for (int i = 0; i < 2 * MT; i++) scale[i] = block_scale(scales[i]);
                if (step + 1 < steps) fetch_scales(step + 1);
            }
            const char* xs = memory + step % STAGES * STAGE + (row + g) * X_PITCH + 32 * t;
            const char* ws = memory + step % STAGES * STAGE + ROWS * X_PITCH + (out + g) * W_PITCH + W_BYTES / 4 * t;
            multiply_stage(xs, ws, scale, sums);
        }
    }

    static __device__ inline void multiply_stage(const char* xs, const char* ws, const u32* scale,
                                                 float (*sums)[NT][4]) {
        constexpr int WORDS = W_BYTES / 32;  // of a lane's 8 columns
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 b[NT];
#pragma unroll
            for (int j = 0; j < NT; j++) b[j] = *reinterpret_cast<const uint4*>(xs + j * 8 * X_PITCH + 16 * half);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                u32 words[WORDS], fragments[2][4], a[4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const char* from = ws + (2 * m + r) * 8 * W_PITCH + W_BYTES / 8 * half;
#pragma unroll
                    for (int i = 0; i < WORDS; i++) words[i] = reinterpret_cast<const u32*>(from)[i];
                    dequantise<FORMAT>(words, scale[2 * m + r], fragments[r]);
                }
#pragma unroll
                for (int q = 0; q < 2; q++) {
                    fragment(fragments[0], fragments[1], q, a);
#pragma unroll
                    for (int j = 0; j < NT; j++) mma(sums[m][j], a, (&b[j].x)[2 * q], (&b[j].x)[2 * q + 1]);
                }
            }
        }
    }

    // Hands every sum to `store(output, row of the tile, value)`, neighbouring outputs to neighbouring threads. The sums
    // pass through `memory`, which holds them all: the stages are done with.
    template <class S>
    static __device__ inline void finish(u32 first, float factor, float (*sums)[NT][4], char* memory, S store) {
        constexpr int PITCH = OUTPUTS + 4;
        static_assert(STAGES * STAGE >= ROWS * PITCH * 4, "the sums of a tile must fit the stages");
        float* table = reinterpret_cast<float*>(memory);
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float* corner = table + (warp / WM * 8 * NT + lane % 4 * 2) * PITCH + warp % WM * 16 * MT + lane / 4;
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int j = 0; j < NT; j++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    corner[(8 * j + c % 2) * PITCH + 16 * m + c / 2 * 8] = sums[m][j][c] * factor;
                }
            }
        }
        __syncthreads();
#pragma unroll 2
        for (u32 i = threadIdx.x; i < ROWS * OUTPUTS; i += THREADS) {
            store(first + i % OUTPUTS, i / OUTPUTS, table[i / OUTPUTS * PITCH + i % OUTPUTS]);
        }
    }
};
