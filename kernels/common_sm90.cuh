// Products of many rows on Hopper's asynchronous tensor cores (wgmma, sm_90a only), for bf16 activations and NVFP4 weights.
//
// The weight is the A operand, dequantised into registers, 64 outputs by 16 columns an instruction; the rows of x are B,
// read by the instruction from shared memory. So a dequantised fragment serves every row of the tile, and stored codes
// are all that is copied of the weight. A block of two warpgroups computes 128 outputs by ROWS rows, 64 columns a
// stage; later stages are on their way. Conditions: whole stages in a row, 16-byte rows.
//
// Fragments come out smaller by 2^8 (common_mma.cuh), which the output's factor puts back.
#pragma once
#include "common_fours.cuh"
#include "common_wgmma.cuh"

// ---- the tile

constexpr u32 WIDE_THREADS = 256;

template <int ROWS, int STAGES>
struct Wide {
    static constexpr int OUTPUTS = 128, PITCH = OUTPUTS + 4, TURNS = (ROWS + 31) / 32;
    static constexpr int X_BYTES = ROWS * 128, W_BYTES = OUTPUTS * 32, STAGE = X_BYTES + W_BYTES;
    static_assert(STAGE % 1024 == 0, "rows of x begin at multiples of 1,024 bytes");

    // `source(i)` is the row of x for row i of the tile, any row where there is none; `memory` is aligned to 1,024 bytes.
    template <class S>
    static __device__ inline void run(const Bank& w, u32 expert, u32 first, const Window& x, S source, u32 memory,
                                      float (*sums)[4]) {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = w.cols / 64;
        u32 piece = threadIdx.x % 8, line = threadIdx.x / 8;
        const char* rows[TURNS];
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            rows[i] = x.data + (source(min(line + 32 * i, ROWS - 1)) * x.stride + piece * 8) * 2;
        }
        u64 matrix = u64(expert) * w.rows;
        u32 coded = min(first + threadIdx.x / 2, w.rows - 1), pace = 8 * CHUNK * min(STRIPE, w.rows - coded / STRIPE * STRIPE);
        const u8* codes = w.data + code_place(w, matrix, coded, threadIdx.x % 2 * 2);
        u32 target = memory;  // the stage to fill next
        auto fetch = [&]() {
            u32 x_to = target + line * 128 + (piece ^ line % 8) * 16, w_to = target + X_BYTES + threadIdx.x * 16;
#pragma unroll
            for (int i = 0; i < TURNS; i++) {
                if (ROWS % 32 == 0 || line + 32 * i < ROWS) copy_async(x_to + 4096 * i, rows[i], 16);
                rows[i] += 128;
            }
            copy_async_far(w_to, codes);
            codes += pace;
            target = target == memory + (STAGES - 1) * STAGE ? memory : target + STAGE;
        };
        // Block scales of one output and 64 columns a thread, two steps ahead; converted once for all that need them.
        u32 output = min(first + threadIdx.x, w.rows - 1), height = min(STRIPE, w.rows - output / STRIPE * STRIPE);
        const u32* scales = reinterpret_cast<const u32*>(w.scales + scale_place(w, matrix, output, 0));
        bool converts = threadIdx.x < OUTPUTS;
        u32 factors = memory + STAGES * STAGE;
        auto scales_at = [&](u32 step) { return converts && step < steps ? scales[step * height] : 0; };
        auto convert = [&](u32 four, u32 step) {
            if (!converts) return;
            u32 pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++) pairs[i] = scale_pair(__byte_perm(four, 0, 0x4440 + i));
            store_shared(factors + (step % 2 * OUTPUTS + threadIdx.x) * 16, pairs);
        };
        for (int stage = 0; stage < STAGES - 2; stage++) {
            if (stage < steps) fetch();
            copy_commit();
        }
        convert(scales_at(0), 0);
        u32 next = scales_at(1), after = scales_at(2);
        u32 out = warp * 16 + lane / 4, shift = 1u << (12 - 4 * (lane % 4));
        // As a product: shifts share a unit with what follows them.
        asm volatile("" : "+r"(shift));
        u32 a[4][4], stage = memory;
        for (u32 step = 0; step < steps; step++) {
            copy_wait<STAGES - 3>();
            publish_shared();
            __syncthreads();
            // The stage of two steps ago: its products are done, since each fragment below waits for its last use.
            if (step + STAGES - 2 < steps) fetch();
            copy_commit();
            convert(next, step + 1);
            next = after;
            after = scales_at(step + 3);
            multiply_stage(stage, stage + X_BYTES + out * 32, factors + (step % 2 * OUTPUTS + out) * 16, shift, a, sums);
            stage = stage == memory + (STAGES - 1) * STAGE ? memory : stage + STAGE;
        }
        wgmma_wait<0>();
    }

    static __device__ inline void load_four(u32* to, u32 from) {
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
    }

    static __device__ inline void multiply_stage(u32 xs, u32 ws, u32 fs, u32 shift, u32 (*a)[4], float (*sums)[4]) {
        constexpr int HEAD = ROWS > 128 ? 128 : ROWS, TAIL = ROWS - HEAD;
        u64 b = rows_descriptor(xs);
        u32 factors[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++) load_four(factors[r], fs + 8 * r * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 codes[2][4];
#pragma unroll
            for (int r = 0; r < 2; r++) load_four(codes[r], ws + 8 * r * 32 + half * 16);
#pragma unroll
            for (int q = 0; q < 2; q++) {
                int k = 2 * half + q;
                wgmma_wait<3>();
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 v = codes[i % 2][2 * q + i / 2] * shift;
                    a[k][i] = multiply((v & 0x80008000u) | (v >> 6 & 0x01c001c0u), factors[i % 2][k]);
                }
                wgmma_fence();
                wgmma<HEAD, false>(sums, a[k], b + k * 2);
                if constexpr (TAIL > 0) wgmma<TAIL, false>(sums + HEAD / 8, a[k], b + k * 2 + HEAD * 8);
                wgmma_commit();
            }
        }
    }

    // Hands every four sums of a row to `store(output, row of the tile, values)`. The sums pass through `memory`.
    template <class S>
    static __device__ inline void finish(u32 first, float factor, float (*sums)[4], float* table, S store) {
        static_assert(STAGES * STAGE >= ROWS * PITCH * 4, "the sums of a tile must fit the stages");
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float* corner = table + lane % 4 * 2 * PITCH + warp * 16 + lane / 4;
        copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) corner[(8 * j + c % 2) * PITCH + c / 2 * 8] = sums[j][c] * factor;
        }
        __syncthreads();
        constexpr int FOURS = OUTPUTS / 4;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < ROWS * FOURS; i += WIDE_THREADS) {
            float4 v = *reinterpret_cast<const float4*>(table + i / FOURS * PITCH + i % FOURS * 4);
            store(first + i % FOURS * 4, i / FOURS, v);
        }
    }
};
