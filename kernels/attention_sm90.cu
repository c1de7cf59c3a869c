// Attention for many rows on Hopper (attention.cu has the formula; attention_tile.cu is the same for other devices).
//
// q, out [rows, heads * D], caches [slots * context, kv_heads * D], table [segments]; bf16, D a multiple of 8 up to 256.
//
// attention_sm90_W: W = D / 64 rounded up, dims past D count as zero. One block takes 128 (row, head) pairs of one segment
// and key/value head, neighbours in the order row * group + head. Four carrying warps copy tiles of keys and values ahead;
// two groups of four warps take 64 pairs each: scores from shared memory, weights in registers, and the scores of a tile
// are on their way while those of the tile before are weighed. Tiles past the last pair's position are not visited.
// blockIdx.x = tile of pairs, longest walks first; y = key/value head; z = segment.
#include "common_attention.cuh"
#include "common_wgmma.cuh"

constexpr u32 PAIRS = 128, MULTIPLIERS = 256, THREADS = 384;

template <int W, int TOKENS>
struct Flash {
    static constexpr u32 Q_BYTES = PAIRS * 128, PART = TOKENS * 128, TILE = W * PART, STAGES = 2;
    static constexpr u32 BYTES = W * Q_BYTES + 2 * STAGES * TILE;

    const Heads& p;
    Segment segment;
    u32 memory, barriers, base, group, length, tiles;

    __device__ inline u32 keys_at(u32 stage) const { return memory + W * Q_BYTES + stage * TILE; }
    __device__ inline u32 values_at(u32 stage) const { return keys_at(STAGES + stage); }
    // Of the queries; of the keys and the values of a stage: full, then empty.
    __device__ inline u32 ready() const { return barriers; }
    __device__ inline u32 keys_full(u32 stage) const { return barriers + 8 * (1 + stage); }
    __device__ inline u32 values_full(u32 stage) const { return barriers + 8 * (1 + STAGES + stage); }
    __device__ inline u32 keys_empty(u32 stage) const { return barriers + 8 * (1 + 2 * STAGES + stage); }
    __device__ inline u32 values_empty(u32 stage) const { return barriers + 8 * (1 + 3 * STAGES + stage); }

    __device__ inline u32 inside(u32 pair) const { return min(pair, segment.len * group - 1); }
    __device__ inline u64 query(u32 pair, const Window& w) const {
        return (segment.first_row + inside(pair) / group) * w.stride + (blockIdx.y * group + inside(pair) % group) * p.head_dim;
    }

    // ---- carriers

    // Rows of a tile of keys or values, those past the last pair's position as zeros.
    __device__ inline void fetch(u32 to, const Window& w, u32 number, u32 full) {
        u32 thread = threadIdx.x - MULTIPLIERS;
        const char* from = w.data + (u64(segment.slot) * p.context * w.stride + blockIdx.y * p.head_dim) * 2;
        for (u32 part = 0; part < W; part++) {
            u32 dim = part * 64 + thread % 8 * 8;
#pragma unroll 4
            for (u32 row = thread / 8; row < TOKENS; row += 16) {
                u32 position = number * TOKENS + row, bytes = position < length && dim < p.head_dim ? 16 : 0;
                u64 at = bytes ? (position * w.stride + dim) * 2 : 0;
                copy_async(to + part * PART + row * 128 + (thread % 8 ^ row % 8) * 16, from + at, bytes);
            }
        }
        copy_arrive(full);
    }

    __device__ inline void carry() {
        u32 thread = threadIdx.x - MULTIPLIERS;
        for (u32 part = 0; part < W; part++) {
            u32 dim = part * 64 + thread % 8 * 8;
            for (u32 row = thread / 8; row < PAIRS; row += 16) {
                u32 bytes = dim < p.head_dim ? 16 : 0;
                copy_async(memory + part * Q_BYTES + row * 128 + (thread % 8 ^ row % 8) * 16,
                           p.q.data + (bytes ? (query(base + row, p.q) + dim) * 2 : 0), bytes);
            }
        }
        copy_arrive(ready());
        for (u32 number = 0; number < tiles; number++) {
            u32 stage = number % STAGES, parity = (number / STAGES + 1) % 2;
            barrier_wait(keys_empty(stage), parity);
            fetch(keys_at(stage), p.k, number, keys_full(stage));
            barrier_wait(values_empty(stage), parity);
            fetch(values_at(stage), p.v, number, values_full(stage));
        }
        copy_commit();
        copy_wait<0>();
    }

    // ---- multipliers

    struct Rows {
        float most[2] = {-INFINITE, -INFINITE}, total[2] = {0.0f, 0.0f};
        u32 position[2];
    };

    __device__ inline void score(u32 number, float (*s)[4]) {
        u32 stage = number % STAGES;
        barrier_wait(keys_full(stage), number / STAGES % 2);
        // What others copied here is there; the tensor cores are to see it.
        publish_shared();
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < W; part++) {
            u64 q = rows_descriptor(memory + part * Q_BYTES + threadIdx.x / 128 * 8192);
            u64 k = rows_descriptor(keys_at(stage) + part * PART);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (part == 0 && i == 0) wgmma_shared<TOKENS, true>(s, q, k);
                else wgmma_shared<TOKENS, false>(s, q + 2 * i, k + 2 * i);
            }
        }
        wgmma_commit();
    }

    // Scores become weights; what sums so far must be multiplied by goes to `keep`.
    __device__ inline void weigh(u32 number, float (*s)[4], Rows& rows, float* keep) {
        u32 first = number * TOKENS + threadIdx.x % 4 * 2;
        float factor = p.scale * 1.44269504f;
        if (number * TOKENS + TOKENS - 1 > min(rows.position[0], rows.position[1])) {
#pragma unroll
            for (int i = 0; i < TOKENS / 8; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (first + 8 * i + e % 2 > rows.position[e / 2]) s[i][e] = -INFINITE;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = rows.most[r], sum = 0.0f;
#pragma unroll
            for (int i = 0; i < TOKENS / 8; i++) most = fmaxf(most, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
            // The same rounded product stands in the weights and in what corrects them.
            float offset = __fmul_rn(most, factor);
            keep[r] = power(__fmul_rn(rows.most[r], factor) - offset);
            rows.most[r] = most;
#pragma unroll
            for (int i = 0; i < TOKENS / 8; i++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& v = s[i][2 * r + e];
                    v = power(fmaf(v, factor, -offset));
                    sum += v;
                }
            }
            rows.total[r] = fmaf(rows.total[r], keep[r], sum);
        }
    }

    static __device__ inline float power(float x) {
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }

    __device__ inline void add_values(u32 number, u32 (*coarse)[4], u32 (*fine)[4], float (*sums)[4]) {
        u32 stage = number % STAGES;
        barrier_wait(values_full(stage), number / STAGES % 2);
        publish_shared();
        u64 v = rows_descriptor(values_at(stage), PART);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < TOKENS / 16; i++) {
            wgmma<64 * W, true>(sums, coarse[i], v + i * 128);
            wgmma<64 * W, true>(sums, fine[i], v + i * 128);
        }
        wgmma_commit();
    }

    static __device__ inline void fragments(float (*s)[4], u32 (*coarse)[4], u32 (*fine)[4]) {
#pragma unroll
        for (int i = 0; i < TOKENS / 16; i++) {
#pragma unroll
            for (int h = 0; h < 4; h++) {
                float* two = s[2 * i + h / 2] + h % 2 * 2;
                split(two[0], two[1], coarse[i][h], fine[i][h]);
            }
        }
    }

    __device__ inline void multiply() {
        u32 lane = threadIdx.x % 32;
        Rows rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            rows.position[r] = segment.position + inside(base + threadIdx.x / 32 * 16 + lane / 4 + 8 * r) / group;
        }
        float sums[8 * W][4] = {}, s[TOKENS / 8][4], keep[2];
        u32 coarse[TOKENS / 16][4], fine[TOKENS / 16][4];
        barrier_wait(ready(), 0);
        score(0, s);
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(keys_empty(0));
        weigh(0, s, rows, keep);
        fragments(s, coarse, fine);
        for (u32 number = 1; number < tiles; number++) {
            score(number, s);
            add_values(number - 1, coarse, fine, sums);
            wgmma_wait<1>();
            if (lane == 0) barrier_arrive(keys_empty(number % STAGES));
            weigh(number, s, rows, keep);
            wgmma_wait<0>();
            if (lane == 0) barrier_arrive(values_empty((number - 1) % STAGES));
            if (__any_sync(ALL, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
                for (int j = 0; j < 8 * W; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) sums[j][e] *= keep[e / 2];
                }
            }
            fragments(s, coarse, fine);
        }
        add_values(tiles - 1, coarse, fine, sums);
        wgmma_wait<0>();
        finish(rows, sums);
    }

    __device__ inline void finish(Rows& rows, float (*sums)[4]) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 pair = base + threadIdx.x / 32 * 16 + lane / 4 + 8 * r;
            float total = rows.total[r];
            total += __shfl_xor_sync(ALL, total, 1);
            total += __shfl_xor_sync(ALL, total, 2);
            if (pair >= segment.len * group) continue;
            u16* out = reinterpret_cast<u16*>(p.out.data) + query(pair, p.out);
            float factor = 1.0f / total;
#pragma unroll
            for (int j = 0; j < 8 * W; j++) {
                u32 dim = 8 * j + lane % 4 * 2;
                if (dim < p.head_dim) {
                    *reinterpret_cast<u32*>(out + dim) = f32_bf16x2(sums[j][2 * r] * factor, sums[j][2 * r + 1] * factor);
                }
            }
        }
    }

    __device__ inline void run() {
        group = p.heads / p.kv_heads;
        base = (gridDim.x - 1 - blockIdx.x) * PAIRS;
        if (base >= segment.len * group) return;
        length = segment.position + inside(base + PAIRS - 1) / group + 1;
        tiles = (length + TOKENS - 1) / TOKENS;
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < 1 + 2 * STAGES; i++) barrier_begin(barriers + 8 * i, 128);
            for (u32 i = 1 + 2 * STAGES; i < 1 + 4 * STAGES; i++) barrier_begin(barriers + 8 * i, MULTIPLIERS / 32);
        }
        __syncthreads();
        if (threadIdx.x < MULTIPLIERS) {
            take_registers<232>();
            multiply();
        } else {
            give_registers<40>();
            carry();
        }
    }
};

template <int W, int TOKENS>
__device__ inline void flash(const Heads& p) {
    extern __shared__ __align__(1024) char memory[];
    __shared__ u64 barriers[9];
    Flash<W, TOKENS> f{p, p.table[blockIdx.z], shared_address(memory), shared_address(barriers)};
    f.run();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_sm90_1(__grid_constant__ const Heads p) { flash<1, 128>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_sm90_2(__grid_constant__ const Heads p) { flash<2, 128>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_sm90_4(__grid_constant__ const Heads p) { flash<4, 32>(p); }
