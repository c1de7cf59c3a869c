// out[row] (+)= sum over choices of weights[row, choice] * (x[row * top_k + choice] weight[ids[row, choice]]^T), and the
// shared expert's second product: out[row] += scale * (shared_x[row] shared^T).
//
// The operands are those of moe_down.cu; both weights in NVFP4 (common_nvfp4.cuh). blockIdx.y = row; a block takes the tiles
// of 8 outputs that lie gridDim.x apart. All experts' inputs are one long row of x, each expert's part staged under its
// weight.
#include "common_nvfp4_stream.cuh"

// Twin of `MoeDown` in moe_down.rs.
struct MoeDown {
    Window x;
    Bank w;
    Window ids, weights, shared_x;
    Bank shared;
    Store how;
    Window out;
    u32 parts, shares;  // of the shared expert's columns, 0 where there is none, and of a chosen one's
};

constexpr u32 AHEAD = 4;  // pieces of x of a thread that are on their way together

// A warp takes one part of the columns, tile after tile: the shared expert's parts, then those of each chosen one.
struct Source {
    const MoeDown& p;
    u32 tiles, runs, choice, first, steps, x, expert;

    __device__ inline explicit Source(const MoeDown& of) : p(of), expert(0) {
        u32 all = (p.w.rows + 7) / 8, part = threadIdx.x / 32;
        tiles = all > blockIdx.x ? (all - blockIdx.x - 1) / gridDim.x + 1 : 0;
        bool shared = part < p.parts;
        u32 length = ((shared ? p.shared.cols : p.w.cols) + COLUMNS<8> - 1) / COLUMNS<8>;
        u32 share = shared ? part : (part - p.parts) % p.shares, of_all = shared ? p.parts : p.shares;
        choice = shared ? ALL : (part - p.parts) / p.shares;
        first = share * length / of_all;
        steps = (share + 1) * length / of_all - first;
        runs = shared || choice < p.ids.cols ? tiles : 0;
        x = first * SPAN<8>;
        if (p.parts && !shared) x += row_pitch<8>(p.shared.cols);
        if (!shared) x += choice * row_pitch<8>(p.w.cols);
    }
    __device__ inline u32 output(u32 tile) const { return (blockIdx.x + tile * gridDim.x) * 8; }
    __device__ inline Run run(u32 i) const { return {steps, x, i}; }
    template <class STREAM>
    __device__ inline void open(STREAM& stream, u32 i) const {
        stream.open(choice == ALL ? p.shared : p.w, expert, output(i), first);
    }
};

// The shared expert's row and the chosen ones', as they lie staged, in eights of columns.
struct Inputs {
    const MoeDown& p;
    u32 shared, each, all;

    __device__ inline explicit Inputs(const MoeDown& of) : p(of) {
        shared = p.parts ? row_pitch<8>(p.shared.cols) / 16 : 0;
        each = row_pitch<8>(p.w.cols) / 16;
        all = shared + each * p.ids.cols;
    }
    // An eight's choice, ALL for the shared expert.
    __device__ inline u32 choice(u32 i) const { return i < shared ? ALL : (i - shared) / each; }
    __device__ inline uint4 read(u32 i) const {
        u32 of = choice(i);
        const Window& x = of == ALL ? p.shared_x : p.x;
        u64 row = of == ALL ? blockIdx.y : u64(blockIdx.y) * p.ids.cols + of;
        u32 col = 8 * (of == ALL ? i : i - shared - of * each);
        if (i >= all || col >= x.cols) return make_uint4(0, 0, 0, 0);
        return *reinterpret_cast<const uint4*>(reinterpret_cast<const u16*>(x.data) + row * x.stride + col);
    }
    __device__ inline void stage(const Staging& staging, u32 i, const uint4& piece, const float* weights) const {
        float v[8];
        widen_eight(piece, v);
        u32 of = choice(i);
        float factor = of == ALL ? p.shared.scale[0] : i < all ? weights[of] : 0.0f;
        stage_eight(staging, 0, i, v, factor, i < all);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2) moe_down_nvfp4(const __grid_constant__ MoeDown p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ u32 ids[WARPS];
    __shared__ float weights[WARPS];
    u32 row = blockIdx.y, top_k = p.ids.cols;
    release_next();
    Source source(p);
    Inputs inputs(p);
    Staging staging = {memory + WARPS * STAGES * STEP, inputs.all * 16, 1};
    Sums<8, 1> sums = {reinterpret_cast<float*>(staging.bytes + staging.pitch + staging.pitch / 4), source.tiles};
    Feed<8, Source> feed(source, memory);
    // The shared expert's warps need not know the choice.
    if (source.choice == ALL) feed.prime();
    sums.clear();
    await_previous();
    if (threadIdx.x < top_k) {
        u32 id = reinterpret_cast<const u32*>(p.ids.data)[row * p.ids.stride + threadIdx.x];
        float weight = reinterpret_cast<const float*>(p.weights.data)[row * p.weights.stride + threadIdx.x];
        ids[threadIdx.x] = id;
        weights[threadIdx.x] = weight * p.w.scale[id];
    }
    uint4 pieces[AHEAD];
#pragma unroll
    for (u32 k = 0; k < AHEAD; k++) pieces[k] = inputs.read(threadIdx.x + k * THREADS);
    u32 output = source.output(threadIdx.x / 8) + threadIdx.x % 8;
    bool mine = threadIdx.x < source.tiles * 8 && output < p.w.rows;
    float before = p.how.accumulate && mine ? load(p.out, row, output) : 0.0f;
    __syncthreads();
    if (source.choice < top_k) source.expert = ids[source.choice];
    if (source.choice != ALL) feed.prime();
#pragma unroll
    for (u32 k = 0; k < AHEAD; k++) inputs.stage(staging, threadIdx.x + k * THREADS, pieces[k], weights);
    for (u32 i = threadIdx.x + AHEAD * THREADS; i - threadIdx.x % 32 < inputs.all; i += THREADS) {
        inputs.stage(staging, i, inputs.read(i), weights);
    }
    __syncthreads();
    multiply<8, 1>(feed, staging, sums);
    if (!mine) return;
    float v = sums.joined(threadIdx.x / 8, 0, threadIdx.x % 8) * FACTOR;
    store(p.out, row, output, p.how.accumulate ? before + p.how.scale * v : v);
}
