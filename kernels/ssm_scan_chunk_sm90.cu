// The chunked scan (ssm_scan_chunk.cu has the formula, the operands and how f32 enters products) on Hopper's asynchronous
// tensor cores.
//
// One block scans 32 rows of S of one head of one segment (blockIdx.x = head * tiles + tile, blockIdx.y = segment). Four
// groups of four warps share the work and meet at barriers in shared memory only:
//   - carriers copy ahead (common_scan_sm90.cuh);
//   - holders keep S in registers, turned over: S^T <- e^(l_Q) S^T + B^T u, u the decayed x. Each row of u holds its coarse,
//     then its fine parts, so both are one product, and their sums stay apart until S is published for the next chunk;
//   - two groups of answerers take chunks in turn: C B^T becomes decayed weights in registers, which meet x, and C meets the
//     S before the chunk.
// So what must follow one another from chunk to chunk is only the holders' product.
#include "common_scan_sm90.cuh"

struct Chunks : Carried {
    // ---- holders

    // u, half a token a thread.
    __device__ inline void decay_inputs(u32 chunk) const {
        u32 token = threadIdx.x % Q, half = threadIdx.x / Q % 2 * 2, to = memory + U_AT + chunk % 2 * U_BYTES;
        float scale = steps(chunk).to_end[token];
#pragma unroll
        for (u32 piece = half; piece < half + 2; piece++) {
            uint4 v = load_shared(stage_at(chunk) + X_AT + half_piece_at(token, piece));
            u32 coarse[4], fine[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 pair = (&v.x)[i];
                split(bits_f32(pair << 16) * scale, bits_f32(pair & 0xffff0000u) * scale, coarse[i], fine[i]);
            }
            store_shared(to + piece_at(token, piece), coarse);
            store_shared(to + piece_at(token, piece + 4), fine);
        }
    }

    // S^T for the chunk's answers: rows of N, each the 32 coarse parts, then the fine ones.
    __device__ inline void publish(u32 chunk, float (*s)[8][4]) const {
        u32 lane = threadIdx.x % 32, matrix = lane / 8;
        if (chunk >= 2) barrier_wait(answered(chunk % 2), (chunk / 2 + 1) % 2);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 row = 64 * i + threadIdx.x / 32 % 4 * 16 + matrix % 2 * 8 + lane % 8;
#pragma unroll
            for (u32 j = 0; j < 4; j += 2) {
                u32 coarse[4], fine[4];
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    const float *a = s[i][j + m / 2] + m % 2 * 2, *b = s[i][4 + j + m / 2] + m % 2 * 2;
                    split(a[0] + b[0], a[1] + b[1], coarse[m], fine[m]);
                }
                u32 to = memory + S_AT + chunk % 2 * S_BYTES;
                store_matrices_upright(to + piece_at(row, j + matrix / 2), coarse[0], coarse[1], coarse[2], coarse[3]);
                store_matrices_upright(to + piece_at(row, 4 + j + matrix / 2), fine[0], fine[1], fine[2], fine[3]);
            }
        }
        publish_shared();
        barrier_arrive(published(chunk % 2));
    }

    // Between memory and a thread's part of S: column `n` of rows `row` on.
    template <bool OUT>
    __device__ inline void move_state(u32 slot, float (*s)[8][4]) const {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    u32 n = 64 * i + threadIdx.x / 32 % 4 * 16 + lane / 4 + e / 2 * 8;
                    u32 row = first_row + 8 * j + lane % 4 * 2 + e % 2;
                    if (n >= p.state_size || row >= p.head_dim) continue;
                    u64 place = ((u64(slot) * p.heads + head) * p.head_dim + row) * p.state.stride + n;
                    if (OUT) set_state_one(p.state, place, s[i][j][e] + s[i][4 + j][e]);
                    else s[i][j][e] = state_one(p.state, place);
                }
            }
        }
    }

    __device__ inline void hold() const {
        float s[2][8][4] = {};
        if (segment.position > 0) move_state<false>(segment.slot, s);
        publish(0, s);
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            await(chunk);
            decay_inputs(chunk);
            publish_shared();
            meet(1, HOLDERS);
            float whole = steps(chunk).whole;
#pragma unroll
            for (int i = 0; i < 64; i++) s[i / 32][i / 4 % 8][i % 4] *= whole;
            u64 b = rows_descriptor(stage_at(chunk)), u = rows_descriptor(memory + U_AT + chunk % 2 * U_BYTES);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < Q / 16; k++) {
                wgmma_shared<64, false, true, true>(s[0], b + 128 * k, u + 128 * k);
                wgmma_shared<64, false, true, true>(s[1], b + PART / 16 + 128 * k, u + 128 * k);
            }
            wgmma_commit();
            wgmma_wait<0>();
            release(chunk);
            if (chunk + 1 < chunks) publish(chunk + 1, s);
        }
        move_state<true>(segment.slot, s);
    }

    // ---- answerers

    // Products C_t . B_s become weights e^(l_t - l_s) dt_s of tokens s up to t, for 16 tokens s.
    __device__ inline void weigh(const Steps& now, u32 sources, float (*products)[4], u32* coarse, u32* fine) const {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
        for (u32 h = 0; h < 4; h++) {
            u32 source = 16 * sources + h / 2 * 8 + lane % 4 * 2, target = 16 * warp + h % 2 * 8 + lane / 4;
            float2 log = *reinterpret_cast<const float2*>(now.coarse + source);
            float2 log_fine = *reinterpret_cast<const float2*>(now.fine + source);
            float2 dt = *reinterpret_cast<const float2*>(now.dt + source);
            float high = now.coarse[target], low = now.fine[target], *two = products[h / 2] + h % 2 * 2;
            float first = two[0] * power_of_2((high - log.x) + (low - log_fine.x)) * dt.x;
            float second = two[1] * power_of_2((high - log.y) + (low - log_fine.y)) * dt.y;
            split(source <= target ? first : 0.0f, source + 1 <= target ? second : 0.0f, coarse[h], fine[h]);
        }
    }

    // Adds D x and stores 16 tokens a warp, by way of shared memory so that rows leave in pieces of 16 bytes.
    __device__ inline void finish(u32 chunk, float skip, float (*y)[4]) const {
        u32 lane = threadIdx.x % 32, group = threadIdx.x / 128, rows = threadIdx.x / 32 % 4 * 16;
        u32 row = rows + lane / 8 % 2 * 8 + lane % 8, table = memory + Y_AT + group * Y_BYTES;
#pragma unroll
        for (u32 j = 0; j < 4; j += 2) {
            u32 at = half_piece_at(row, j + lane / 16), x[4];
            matrices(x, stage_at(chunk) + X_AT + at);
#pragma unroll
            for (u32 m = 0; m < 4; m++) {
                const float* two = y[j + m / 2] + m % 2 * 2;
                x[m] = f32_bf16x2(two[0] + skip * bits_f32(x[m] << 16), two[1] + skip * bits_f32(x[m] & 0xffff0000u));
            }
            store_matrices_upright(table + at, x[0], x[1], x[2], x[3]);
        }
        release(chunk);
        u32 col = first_row + lane % 4 * 8;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 line = rows + 8 * i + lane / 4, token = chunk * Q + line;
            uint4 v = load_shared(table + half_piece_at(line, lane % 4));
            if (token >= segment.len || col >= p.head_dim) continue;
            u16* out = reinterpret_cast<u16*>(p.out.data) + (segment.first_row + token) * p.out.stride;
            *reinterpret_cast<uint4*>(out + head * p.head_dim + col) = v;
        }
        __syncwarp();
    }

    __device__ inline void answer() const {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        float skip = p.params[p.heads + head];
        for (u32 chunk = threadIdx.x / 128; chunk < chunks; chunk += 2) {
            u32 stage = stage_at(chunk), coarse[4][4], fine[4][4];
            u64 c = rows_descriptor(stage + C_AT), b = rows_descriptor(stage);
            const Steps& now = steps(chunk);
            await(chunk);
            // What others copied here is there; the tensor cores are to see it.
            publish_shared();
            float products[8][4], from_state[8][4], y[4][4] = {};
            wgmma_fence();
            wgmma_shared<64, true>(products, c, b);
#pragma unroll
            for (int k = 1; k < 8; k++) {
                u32 at = k / 4 * (PART / 16) + k % 4 * 2;
                wgmma_shared<64, false>(products, c + at, b + at);
            }
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
#pragma unroll
                for (int h = 0; h < 4; h++) coarse[k][h] = fine[k][h] = 0;
                if (k <= warp) weigh(now, k, products + 2 * k, coarse[k], fine[k]);
            }
            barrier_wait(published(chunk % 2), chunk / 2 % 2);
            u64 s = rows_descriptor(memory + S_AT + chunk % 2 * S_BYTES), x = half_rows_descriptor(stage + X_AT);
            wgmma_fence();
            wgmma_shared<64, true, false, true>(from_state, c, s);
#pragma unroll
            for (int k = 1; k < 8; k++) {
                wgmma_shared<64, false, false, true>(from_state, c + k / 4 * (PART / 16) + k % 4 * 2, s + 128 * k);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                wgmma<32, true>(y, coarse[k], x + 64 * k);
                wgmma<32, true>(y, fine[k], x + 64 * k);
            }
            wgmma_commit();
            wgmma_wait<0>();
            if (lane == 0) barrier_arrive(answered(chunk % 2));
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float decay = now.from_start[16 * warp + lane / 4 + 8 * r];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float& sum = y[i / 2][2 * r + i % 2];
                    sum = fmaf(decay, from_state[i / 2][2 * r + i % 2] + from_state[4 + i / 2][2 * r + i % 2], sum);
                }
            }
            finish(chunk, skip, y);
        }
    }

    __device__ inline void run() const {
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < STAGES; i++) {
                // Each carrier's copies, and the lanes that make decays.
                barrier_begin(full(i), CARRIERS + 32);
                // Holders, and one of the two groups of answerers.
                barrier_begin(empty(i), HOLDERS + ANSWERERS / 2);
            }
            for (u32 i = 0; i < 2; i++) {
                barrier_begin(published(i), HOLDERS);
                barrier_begin(answered(i), 4);
            }
        }
        __syncthreads();
        if (threadIdx.x < ANSWERERS) {
            take_registers<152>();
            answer();
        } else if (threadIdx.x < ANSWERERS + HOLDERS) {
            hold();
        } else {
            give_registers<72>();
            carry();
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) ssm_scan_chunk_sm90(__grid_constant__ const Scan p) {
    extern __shared__ __align__(1024) char memory[];
    __shared__ u64 barriers[2 * STAGES + 4];
    Segment segment = p.table[blockIdx.y];
    if (segment.len == 0) return;
    u32 head = blockIdx.x / p.tiles, first_row = blockIdx.x % p.tiles * P, chunks = (segment.len + Q - 1) / Q;
    Chunks{{p, segment, memory, shared_address(memory), shared_address(barriers), head, first_row, chunks}}.run();
}
