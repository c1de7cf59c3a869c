// What the groups of warps of Hopper's chunked scan (ssm_scan_chunk_sm90.cu) share: where chunks lie, the barriers at which they
// meet, and the carriers, who copy chunks of B, C and x ahead, zeros past the segment's end, and make their decays.
#pragma once
#include "common_scan_chunk.cuh"
#include "common_wgmma.cuh"

constexpr u32 P = 32, N = 128, ANSWERERS = 256, HOLDERS = 128, CARRIERS = 128;
constexpr u32 THREADS = ANSWERERS + HOLDERS + CARRIERS, STAGES = 3;
// A stage: B and C as two parts of 64 columns each, x in rows of 64 bytes.
constexpr u32 PART = Q * 128, C_AT = 2 * PART, X_AT = 4 * PART, STAGE = X_AT + Q * 64;
// S^T as published, twice; u, twice; outputs on their way, a group's apart; decays.
constexpr u32 S_AT = STAGES * STAGE, S_BYTES = N * 128, U_AT = S_AT + 2 * S_BYTES, U_BYTES = Q * 128;
constexpr u32 Y_AT = U_AT + 2 * U_BYTES, Y_BYTES = Q * 64, STEPS_AT = Y_AT + 2 * Y_BYTES;

// Where piece `piece` of row `row` lies, in rows of 128 bytes and of 64 bytes.
__device__ inline u32 piece_at(u32 row, u32 piece) { return row * 128 + (piece ^ row % 8) * 16; }
__device__ inline u32 half_piece_at(u32 row, u32 piece) { return row * 64 + (piece ^ row / 2 % 4) * 16; }

struct Carried {
    const Scan& p;
    const Segment segment;
    char* shared;
    u32 memory, barriers, head, first_row, chunks;

    __device__ inline u32 full(u32 stage) const { return barriers + 8 * stage; }
    __device__ inline u32 empty(u32 stage) const { return barriers + 8 * (STAGES + stage); }
    __device__ inline u32 published(u32 side) const { return barriers + 8 * (2 * STAGES + side); }
    __device__ inline u32 answered(u32 side) const { return barriers + 8 * (2 * STAGES + 2 + side); }
    __device__ inline u32 stage_at(u32 chunk) const { return memory + chunk % STAGES * STAGE; }
    __device__ inline Steps& steps(u32 chunk) const { return reinterpret_cast<Steps*>(shared + STEPS_AT)[chunk % STAGES]; }
    __device__ inline void await(u32 chunk) const { barrier_wait(full(chunk % STAGES), chunk / STAGES % 2); }
    // By every lane that is done with the chunk's stage: one for its warp would do, but compute-sanitizer follows none but those
    // who arrive, and it costs nothing measurable.
    __device__ inline void release(u32 chunk) const {
        __syncwarp();
        barrier_arrive(empty(chunk % STAGES));
    }

    __device__ inline void fetch(u32 chunk) const {
        u32 thread = threadIdx.x % CARRIERS, n = p.state_size, left = segment.len - chunk * Q;
        u32 group = head / (p.heads / (p.b.cols / n));
        u64 first = segment.first_row + chunk * Q;
#pragma unroll
        for (u32 which = 0; which < 2; which++) {
            const Window& w = which ? p.c : p.b;
            u32 row = thread / 8, to = stage_at(chunk) + which * C_AT + piece_at(row, thread % 8);
#pragma unroll
            for (u32 part = 0; part < 2; part++) {
                u32 col = part * 64 + thread % 8 * 8;
                const char* from = w.data + ((first + row) * w.stride + group * n + col) * 2;
#pragma unroll
                for (u32 i = 0; i < Q; i += 16) {
                    bool there = row + i < left && col < n;
                    copy_async(to + part * PART + i * 128, there ? from + i * w.stride * 2 : w.data, there ? 16 : 0);
                }
            }
        }
        u32 row = thread / 4, col = first_row + thread % 4 * 8;
        const char* from = p.x.data + ((first + row) * p.x.stride + head * p.head_dim + col) * 2;
#pragma unroll
        for (u32 i = 0; i < Q; i += 32) {
            bool there = row + i < left && col < p.head_dim;
            copy_async(stage_at(chunk) + X_AT + half_piece_at(row + i, thread % 4), there ? from + i * p.x.stride * 2 : p.x.data,
                       there ? 16 : 0);
        }
        copy_arrive(full(chunk % STAGES));
    }

    // dt of a token as it is stored.
    __device__ inline u16 stored_step(u32 token) const {
        const u16* from = reinterpret_cast<const u16*>(p.dt.data) + head;
        return from[(segment.first_row + min(token, segment.len - 1)) * p.dt.stride];
    }

    __device__ inline void carry() const {
        u32 lane = threadIdx.x % 32;
        bool timer = threadIdx.x % CARRIERS < 32;
        float a_log = -expf(p.params[head]), bias = p.params[2 * p.heads + head];
        u16 stored[2];
        auto ask = [&](u32 chunk) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) stored[i] = stored_step(chunk * Q + 2 * lane + i);
        };
        if (timer) ask(0);
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            barrier_wait(empty(chunk % STAGES), (chunk / STAGES + 1) % 2);
            fetch(chunk);
            if (!timer) continue;
            float dt[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float step = fminf(fmaxf(softplus(bf16_f32(stored[i]) + bias), p.low), p.high);
                dt[i] = chunk * Q + 2 * lane + i < segment.len ? step : 0.0f;
            }
            if (chunk + 1 < chunks) ask(chunk + 1);
            make_steps(steps(chunk), dt[0], dt[1], a_log);
            barrier_arrive(full(chunk % STAGES));
        }
        copy_commit();
        copy_wait<0>();
    }
};
