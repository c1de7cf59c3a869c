// Streams an NVFP4 weight through a block: the second half of common_nvfp4.cuh.
//
// A block takes tiles that lie gridDim.x apart. A warp takes steps that follow each other and copies them itself, STAGES
// ahead, through a ring of its own in shared memory: it waits for no other warp before the sums are joined. The copies
// begin before the kernels ahead are done. Conditions: whole stripes and chunks of block scales (`scale_place`).
#pragma once
#include "common_nvfp4.cuh"

// ---- the weight

// A warp's ring of STAGES steps: what it copies, and what it takes out.
template <int OUTPUTS>
struct Stream {
    static constexpr u32 SECOND = OUTPUTS == 16 ? 64 * CHUNK : 16 * CHUNK * STRIPE;
    const u8* first;   // the first of two pieces of the next step that this lane copies, SECOND bytes apart
    const u8* scales;  // and its word of block scales
    int chunks;        // of columns from the next step on
    u32 at, end;  // in the ring: the oldest step, whose place the next one takes

    __device__ inline explicit Stream(char* ring) {
        at = shared_address(ring) + threadIdx.x / 32 * (STAGES * STEP);
        end = at + STAGES * STEP;
    }

    // The lane whose pieces a lane copies: eight lanes together, a whole line of memory.
    static __device__ inline u32 turned(u32 lane) { return lane % 16 / 2 * 4 + lane / 16 * 2 + lane % 2; }

    // Turns to a step of the tile that begins at `output`.
    __device__ inline void open(const Bank& w, u32 output, u32 step) {
        constexpr u32 WORDS = 32 / OUTPUTS;
        u32 lane = threadIdx.x % 32, word = lane / OUTPUTS;
        // The place of the step, and in it those of the lane (`scale_place`).
        u64 place = u64(output / STRIPE * STRIPE) * (w.cols / 16) + step * (WORDS * CHUNK * STRIPE) + output % STRIPE * CHUNK;
        first = w.data + 8 * (place + lane / 16 * (CHUNK * STRIPE) + lane % 16 * 2);
        scales = w.scales + (place + word * (CHUNK * STRIPE) + lane % OUTPUTS * CHUNK);
        chunks = int(w.cols / (16 * CHUNK)) - int(step * WORDS);
    }

    // Queues the next step; an empty one where there is none.
    __device__ inline void copy(bool there) {
        constexpr u32 WORDS = 32 / OUTPUTS;
        if (there) {
            u32 lane = threadIdx.x % 32;
            int half = lane / 16;
            copy_async(at + turned(lane) * 16, first, half < chunks ? 16 : 0);
            copy_async(at + 512 + turned(lane) * 16, first + SECOND, half + (OUTPUTS == 16 ? 0 : 2) < chunks ? 16 : 0);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at + 1024 + lane * 4), "l"(scales),
                         "r"(int(lane / OUTPUTS) < chunks ? 4 : 0)
                         : "memory");
            first += 8 * WORDS * CHUNK * STRIPE, scales += WORDS * CHUNK * STRIPE;
            chunks -= WORDS;
        }
        copy_commit();
        at += STEP;
        if (at == end) at -= STAGES * STEP;
    }

    // The oldest step, into registers: two pieces of codes, and their blocks' scales.
    __device__ inline void take(uint4* codes, u32* blocks) const {
        u32 lane = threadIdx.x % 32, base = at + lane * 16;
        u32 scale = at + 1024 + lane % 4 / 2 * (4 * OUTPUTS) + lane / 4 * 4 + lane % 2 * 2;
        copy_wait<STAGES - 1>();
        __syncwarp();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            codes[h] = load_shared(base + h * 512);
            blocks[h] = load_shared_u16(scale + h * (OUTPUTS == 16 ? 32 : 64));
        }
    }
};

// ---- a block's work

// Steps along rows of one tile that a warp takes one after the other.
struct Run {
    u32 steps, x, tile;  // `x`: where their columns are staged
};

// Copies a warp's steps ahead. SOURCE tells a warp's runs: `runs`, `run(i)`, `open(stream, i)`.
template <int OUTPUTS, class SOURCE>
struct Feed {
    const SOURCE& source;
    Stream<OUTPUTS> stream;
    u32 run = ALL, left = 0;

    __device__ inline Feed(const SOURCE& from, char* ring) : source(from), stream(ring) {}

    // Goes on to the next run that has steps.
    __device__ inline void turn() {
        while (left == 0 && ++run < source.runs) {
            left = source.run(run).steps;
            if (left > 0) source.open(stream, run);
        }
    }

    // Queues one step, an empty one behind the last.
    __device__ inline void next() {
        stream.copy(left > 0);
        if (left > 0 && --left == 0) turn();
    }

    // Fills the ring.
    __device__ inline void prime() {
        turn();
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) next();
    }
};

// Sums by [tiles, WARPS, NT, OUTPUTS]; a warp need not have a part of every tile.
template <int OUTPUTS, int NT>
struct Sums {
    float* data;
    u32 tiles;

    __device__ inline float* of(u32 tile, u32 warp) const { return data + (tile * WARPS + warp) * (NT * OUTPUTS); }
    __device__ inline void clear() const {
        float4* fours = reinterpret_cast<float4*>(data);
        for (u32 i = threadIdx.x; i < tiles * (WARPS * NT * OUTPUTS / 4); i += THREADS) fours[i] = make_float4(0, 0, 0, 0);
    }
    // The sum for an output of a tile.
    __device__ inline float joined(u32 tile, u32 row, u32 output) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) sum += of(tile, warp)[row * OUTPUTS + output];
        return sum;
    }
};

// Runs through all steps and leaves their sums, which have been cleared, after a barrier.
template <int OUTPUTS, int NT, class SOURCE>
__device__ inline void multiply(Feed<OUTPUTS, SOURCE>& feed, const Staging& staging, const Sums<OUTPUTS, NT>& all) {
    const SOURCE& source = feed.source;
    u32 lane = threadIdx.x % 32;
    Reader x(staging);
    Tables tables;
#pragma unroll 1
    for (u32 i = 0; i < source.runs; i++) {
        Run run = source.run(i);
        float sums[NT][OUTPUTS / 8] = {};
#pragma unroll 1
        for (; run.steps > 0; run.steps--, run.x += SPAN<OUTPUTS>) {
            uint4 codes[2];
            u32 blocks[2];
            feed.stream.take(codes, blocks);
            meet<OUTPUTS, NT>(tables, codes, blocks, x, run.x, staging.pitch, sums);
            __syncwarp();
            feed.next();
        }
        float* out = all.of(run.tile, threadIdx.x / 32) + lane / 4;
#pragma unroll
        for (int r = 0; r < NT; r++) {
#pragma unroll
            for (int k = 0; k < OUTPUTS / 8; k++) {
                float v = sums[r][k] + __shfl_xor_sync(ALL, sums[r][k], 1);
                v += __shfl_xor_sync(ALL, v, 2);
                if (lane % 4 == 0) out[r * OUTPUTS + 8 * k] = v;
            }
        }
    }
    copy_wait<0>();
    __syncthreads();
}

// `count` tiles of `length` steps: each warp takes as many steps, one after the other, over the end of a tile too.
struct Deal {
    u32 length, first, last;  // first and last of this warp
    u32 runs, tile;           // the tile of its first run

    // This warp's, kept in shared memory: registers are for the steps.
    static __device__ inline const Deal& of(u32 count, u32 steps) {
        __shared__ Deal deals[WARPS];
        Deal& deal = deals[threadIdx.x / 32];
        u32 each = (count * steps + WARPS - 1) / WARPS, first = min(threadIdx.x / 32 * each, count * steps);
        u32 last = min(first + each, count * steps), tile = first / steps;
        if (threadIdx.x % 32 == 0) deal = {steps, first, last, first < last ? (last - 1) / steps - tile + 1 : 0, tile};
        __syncwarp();
        return deal;
    }
    __device__ inline u32 step(u32 i) const { return i == 0 ? first - tile * length : 0; }
    __device__ inline Run run(u32 i, u32 span) const {
        u32 at = max(first, (tile + i) * length);
        return {min((tile + i + 1) * length, last) - at, step(i) * span, tile + i};
    }
};

// Tiles of one matrix, gridDim.x apart.
template <int OUTPUTS>
struct Tiles {
    const Bank& w;
    u32 count;
    const Deal& deal;
    u32 runs;

    static __device__ inline u32 mine(u32 rows) {
        u32 tiles = (rows + OUTPUTS - 1) / OUTPUTS;
        return tiles > blockIdx.x ? (tiles - blockIdx.x - 1) / gridDim.x + 1 : 0;
    }
    __device__ inline explicit Tiles(const Bank& weight)
        : w(weight), count(mine(w.rows)),
          deal(Deal::of(count, (w.cols + COLUMNS<OUTPUTS> - 1) / COLUMNS<OUTPUTS>)), runs(deal.runs) {}
    __device__ inline u32 output(u32 tile) const { return (blockIdx.x + tile * gridDim.x) * OUTPUTS; }
    __device__ inline Run run(u32 i) const { return deal.run(i, SPAN<OUTPUTS>); }
    template <class STREAM>
    __device__ inline void open(STREAM& stream, u32 i) const {
        stream.open(w, output(deal.tile + i), deal.step(i));
    }
};
