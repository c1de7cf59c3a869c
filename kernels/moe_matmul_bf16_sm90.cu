// out[row * top_k + choice] = f(x[input row] weight[ids[row, choice]]^T) for many pairs on Hopper, BF16 weights (moe_matmul.cu
// has the operands). bf16 x and out; whole multiples of 64 inputs and 8 outputs; no function, RELU2 or SILU.
//
// moe_matmul_bf16_sm90_MOST: a block a multiprocessor, which takes tile after tile of 128 outputs by up to MOST pairs of one
// expert (common_ranked.cuh) from a common count; a tile runs as narrow as its pairs allow. Two teams of four carrying warps
// copy x and the weight ahead, 64 columns a step, taking steps in turn; two groups of four warps multiply 64 outputs each by
// all pairs, both operands in shared memory (common_wgmma.cuh). Carriers go on into the next tile while sums are stored.
#include "common_moe.cuh"
#include "common_ranked.cuh"
#include "common_wgmma.cuh"

// Tiles that blocks have taken, and blocks that are done; the last one puts both back.
__device__ u32 taken[2];

template <int MOST, int STAGES>
struct Grouped {
    static constexpr int GROUPS = 2, TEAMS = 2, OUTPUTS = 64 * GROUPS, MULTIPLIERS = 128 * GROUPS;
    static constexpr int THREADS = MULTIPLIERS + 128 * TEAMS;
    static constexpr int X_BYTES = MOST * 128, W_BYTES = OUTPUTS * 128, STAGE = X_BYTES + W_BYTES;
    static constexpr int PART = 32;  // rows that are stored at a time

    struct Shared {
        u64 full[STAGES], empty[STAGES], known[2], read[2];
        Place places[2];
        u32 pairs[2][MOST], sources[2][MOST];  // and where their rows of x begin, in pieces of 16 bytes
        Ranked ranked;
    };

    const Moe& p;
    Shared& shared;
    u32 memory;

    __device__ inline u32 x_at(u32 step) const { return memory + step % STAGES * STAGE; }
    __device__ inline u32 w_at(u32 step) const { return x_at(step) + X_BYTES; }
    __device__ inline u32 out_at(u32 group) const { return memory + STAGES * STAGE + group * PART * 128; }
    __device__ inline u32 full(u32 step) const { return shared_address(shared.full + step % STAGES); }
    __device__ inline u32 empty(u32 step) const { return shared_address(shared.empty + step % STAGES); }
    __device__ inline u32 steps() const { return p.w.cols / 64; }

    // ---- carriers

    static constexpr u32 TURNS = 3;

    struct Carrier {
        u32 team = (threadIdx.x - MULTIPLIERS) / 128, thread = threadIdx.x % 128;
        u32 planned = 0, number = blockIdx.x;
        Place next;
    };

    // The next tile's place and pairs, in turns that do not wait for what they ask; the first warp's.
    __device__ inline void plan(Carrier& c, u32 turn) {
        if (c.team > 0 || c.thread >= 32) return;
        u32 slot = c.planned % 2;
        if (turn == 0 && c.planned > 0 && c.thread == 0) c.number = gridDim.x + atomicAdd(taken, 1);
        if (turn == 1) c.next = shared.ranked.find(__shfl_sync(ALL, c.number, 0), p.w.experts, p.w.rows, OUTPUTS);
        if (turn == 2) {
            if (c.planned >= 2) barrier_wait(shared_address(shared.read + slot), (c.planned / 2 + 1) % 2);
            for (u32 at = c.thread; c.next.count != PADDING && at < c.next.count; at += 32) {
                u32 pair = p.order[c.next.start + at];
                shared.pairs[slot][at] = pair;
                shared.sources[slot][at] = (p.by_pair ? pair : pair / p.ids.cols) * u32(p.x.stride / 8);
            }
            if (c.thread == 0) shared.places[slot] = c.next;
            barrier_arrive(shared_address(shared.known + slot));
            c.planned++;
        }
    }

    __device__ inline void fetch(const Carrier& c, const Place& place, const u32* sources, u32 step, u32 col) {
        u32 piece = c.thread % 8, line = c.thread / 8, at = line * 128 + (piece ^ line % 8) * 16;
        u32 count = place.count == PADDING ? 0 : place.count;
#pragma unroll
        for (u32 i = 0; i < OUTPUTS / 16; i++) {
            u64 from = u64(place.expert) * p.w.rows + min(place.first + 16 * i + line, p.w.rows - 1);
            copy_async_far(w_at(step) + 2048 * i + at, p.w.data + (from * p.w.cols + col + piece * 8) * 2);
        }
        const char* x = p.x.data + (col + piece * 8) * 2;
#pragma unroll 4
        for (u32 i = 0; i < MOST / 16; i++) {
            if (16 * i >= count) break;
            copy_async(x_at(step) + 2048 * i + at, x + u64(sources[min(line + 16 * i, count - 1)]) * 16, 16);
        }
        copy_arrive(full(step));
    }

    __device__ inline void carry() {
        Carrier c;
        for (u32 turn = 0; turn < TURNS; turn++) plan(c, turn);
        u32 begin = 0, step = c.team;  // steps of a team lie TEAMS apart
        for (u32 tile = 0;; tile++) {
            u32 slot = tile % 2, turn = 0;
            barrier_wait(shared_address(shared.known + slot), tile / 2 % 2);
            Place place = shared.places[slot];
            if (place.count == 0) break;
            for (; step < begin + steps(); step += TEAMS) {
                barrier_wait(empty(step), (step / STAGES + 1) % 2);
                fetch(c, place, shared.sources[slot], step, (step - begin) * 64);
                if (turn < TURNS) plan(c, turn++);
            }
            barrier_arrive(shared_address(shared.read + slot));
            begin += steps();
            while (turn < TURNS) plan(c, turn++);
        }
        copy_commit();
        copy_wait<0>();
        if (threadIdx.x == MULTIPLIERS) {
            __threadfence();
            if (atomicAdd(taken + 1, 1) + 1 == gridDim.x) taken[0] = taken[1] = 0;
        }
    }

    // ---- multipliers

    template <int ROWS>
    __device__ inline void multiply(u32 begin, const Place& place, const u32* pairs) {
        u32 group = threadIdx.x / 128;
        float sums[ROWS / 8][4] = {};
        for (u32 step = begin; step < begin + steps(); step++) {
            barrier_wait(full(step), step / STAGES % 2);
            // What others copied here is there; the tensor cores are to see it.
            publish_shared();
            u64 a = rows_descriptor(w_at(step) + group * 8192), b = rows_descriptor(x_at(step));
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) wgmma_shared<ROWS, false>(sums, a + 2 * k, b + 2 * k);
            wgmma_commit();
            wgmma_wait<1>();
            if (step > begin && threadIdx.x % 32 == 0) barrier_arrive(empty(step - 1));
        }
        wgmma_wait<0>();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty(begin + steps() - 1));
        if (place.count != PADDING) finish<ROWS>(place, pairs, sums);
    }

    // Sums become rows of outputs in shared memory, PART at a time, and go from there to memory in pieces of 16 bytes.
    template <int ROWS>
    __device__ inline void finish(const Place& place, const u32* pairs, float (*sums)[4]) {
        u32 lane = threadIdx.x % 32, group = threadIdx.x / 128, thread = threadIdx.x % 128, table = out_at(group);
        u32 row = lane / 16 * 8 + lane % 8, to = table + row * 128 + ((thread / 32 * 2 + lane / 8 % 2) ^ row % 8) * 16;
        float factor = p.w.scale[place.expert];
        u32 output = place.first + group * 64 + thread % 8 * 8;
#pragma unroll
        for (u32 begin = 0; begin < ROWS; begin += PART) {
#pragma unroll
            for (u32 j = begin / 8; j < (begin + PART < ROWS ? begin + PART : ROWS) / 8; j += 2) {
                u32 packed[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float* two = sums[j + i / 2] + i % 2 * 2;
                    packed[i] = f32_bf16x2(function(two[0] * factor), function(two[1] * factor));
                }
                store_matrices(to + (8 * j - begin) * 128, packed);
            }
            meet(1 + group, 128);
            u32 end = min(place.count - min(place.count, begin), u32(PART));
#pragma unroll 1
            for (u32 line = thread / 8; line < end; line += 16) {
                uint4 v = load_shared(table + line * 128 + (thread % 8 ^ line % 8) * 16);
                u16* out = reinterpret_cast<u16*>(p.out.data) + pairs[begin + line] * p.out.stride + output;
                if (output < p.w.rows) *reinterpret_cast<uint4*>(out) = v;
            }
            // The table is free once all have read it.
            meet(1 + group, 128);
        }
    }

    __device__ inline float function(float v) const {
        if (p.function == RELU2) return fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
        return p.function == SILU ? __fdividef(v, 1.0f + __expf(-v)) : v;
    }

    // The narrowest of several widths that holds the tile, the last one in any case.
    template <int WIDTH, int... WIDER>
    __device__ inline void choose(u32 begin, const Place& place, const u32* pairs) {
        if constexpr (sizeof...(WIDER) > 0) {
            if (place.count > WIDTH) return choose<WIDER...>(begin, place, pairs);
        }
        multiply<WIDTH>(begin, place, pairs);
    }

    template <int... WIDTHS>
    __device__ inline void run() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                barrier_begin(shared_address(shared.full + i), 128);
                barrier_begin(shared_address(shared.empty + i), MULTIPLIERS / 32);
            }
            for (int i = 0; i < 2; i++) {
                // All who wrote or read arrive, each for itself.
                barrier_begin(shared_address(shared.known + i), 32);
                barrier_begin(shared_address(shared.read + i), THREADS);
            }
        }
        shared.ranked.rank(p.offsets, p.w.experts, MOST);
        if (threadIdx.x >= MULTIPLIERS) {
            carry();
        } else {
            for (u32 tile = 0;; tile++) {
                u32 slot = tile % 2;
                barrier_wait(shared_address(shared.known + slot), tile / 2 % 2);
                Place place = shared.places[slot];
                if (place.count == 0) break;
                choose<WIDTHS...>(tile * steps(), place, shared.pairs[slot]);
                barrier_arrive(shared_address(shared.read + slot));
            }
        }
    }
};

#define GROUPED(MOST, STAGES, ...)                                                                   \
    extern "C" __global__ void __launch_bounds__(Grouped<MOST, STAGES>::THREADS, 1)                  \
        moe_matmul_bf16_sm90_##MOST(__grid_constant__ const Moe p) {                                 \
        extern __shared__ __align__(1024) char memory[];                                             \
        __shared__ Grouped<MOST, STAGES>::Shared shared;                                             \
        Grouped<MOST, STAGES>{p, shared, shared_address(memory)}.template run<__VA_ARGS__>();        \
    }
GROUPED(64, 8, 16, 32, 64)
GROUPED(192, 5, 64, 96, 128, 160, 192)
