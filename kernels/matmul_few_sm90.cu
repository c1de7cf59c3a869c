// out = f(x weight^T + bias), or out += scale * f(x weight^T + bias), for a few rows to some dozens and an NVFP4 weight
// (common_few_sm90.cuh).
//
// The operands are those of matmul_few.cu; whole stripes and chunks of block scales. Two blocks, a cluster, share tiles that
// follow each other: each meets half of the columns, of which it stages up to 8 * NT rows, and joins every other tile with
// what the other block has of it. More rows are met by other clusters, at the same time, so that the weight comes from the
// cache. Every run of a tile has a place of its own, and they are joined in order: equal rows give one answer.
#include "common_few_sm90.cuh"

// Twin of `Dense` in matmul_few.rs.
struct Dense {
    Window x;
    Bank w;
    const float* bias;
    Store how;
    Window out;
    Cut cut;
    u32 rows, function;
};

constexpr u32 PAIR = 2;  // blocks of a cluster

__device__ inline u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of both blocks.
__device__ inline void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What lies at this address in the other block.
__device__ inline float load_other(u32 address, u32 rank) {
    float v;
    asm volatile("{.reg .u32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.f32 %0, [there];}"
                 : "=f"(v)
                 : "r"(address), "r"(rank)
                 : "memory");
    return v;
}

template <int NT>
__device__ inline void few(const Dense& p) {
    constexpr u32 ROWS = 8 * NT, SUMS = NT * 128;
    extern __shared__ __align__(128) char memory[];
    __shared__ u64 words[RINGS + 1];
    const u32 rank = cluster_rank(), cluster = blockIdx.x / PAIR, clusters = gridDim.x / PAIR;
    Cut cut = p.cut;  // of this block's half
    const u32 begin = rank * ((cut.units + 1) / PAIR);
    cut.tiles = 1;  // of what a place calls an item
    cut.units = rank == 0 ? (cut.units + 1) / PAIR : cut.units / PAIR;
    char* staging = memory + RINGS * cut.step * UNIT;
    float* partial = reinterpret_cast<float*>(staging + cut.rows * cut.pitch);
    u32 lane = threadIdx.x % 32, warp = this_warp(), sums_at = shared_address(partial);
    Barriers barriers(words);
    release_next();
    __syncthreads();
    // Tiles of all groups of rows, one group after the other.
    u32 tiles = (p.rows + ROWS - 1) / ROWS * p.w.rows / STRIPE, behind = tiles * (cluster + 1) / clusters;
    for (u32 first = tiles * cluster / clusters; first < behind;) {
        u32 group = first / (p.w.rows / STRIPE), within = first - group * (p.w.rows / STRIPE);
        u32 count = min(behind - first, p.w.rows / STRIPE - within), start = group * ROWS, rows = min(ROWS, p.rows - start);
        u32 runs = count * cut.splits, each = (runs + WARPS - 1) / WARPS, from = min(warp * each, runs), tile = from / cut.splits;
        Place place{min(each, runs - from), from - tile * cut.splits, 0, tile};
        auto locate = [&](const Place& at) {
            return Steps(p.w, 0, within + at.item, begin + at.part * cut.chunk);
        };
        Feed<decltype(locate)> feed(cut, locate, place, shared_address(memory), barriers);
        await_previous();
        u32 bytes = cut.units * 128;
        if (threadIdx.x == 0) barrier_expect(barriers.rows(), rows * bytes);
        if (threadIdx.x < rows) {
            copy_bulk(shared_address(staging) + threadIdx.x * cut.pitch,
                      p.x.data + (u64(start + threadIdx.x) * p.x.stride + begin * 64) * 2, bytes, barriers.rows());
        }
        u32 lines[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) lines[j] = shared_address(staging) + min(8 * j + lane / 4, rows - 1) * cut.pitch + lane % 4 * 32;
        barriers.wait_rows();
#pragma unroll 1
        for (u32 run = from; place.left > 0; run++) {
            float sums[NT][4] = {};
            meet_run<NT>(feed, barriers, place.units(cut), lines, place.part * cut.chunk * 128, sums);
#pragma unroll
            for (int j = 0; j < NT; j++) {
#pragma unroll
                for (int c = 0; c < 4; c++) partial[run * SUMS + (4 * j + c) * 32 + lane] = sums[j][c];
            }
            place.next(cut);
        }
        meet_cluster();
        float factor = p.w.scale[0] * FACTOR<W_NVFP4>;
        for (u32 i = threadIdx.x; i < (count + 1 - rank) / PAIR * SUMS; i += THREADS) {
            u32 tile = i / SUMS * PAIR + rank, at = i % SUMS, c = at / 32 % 4;
            u32 output = (within + tile) * STRIPE + at % 32 / 4 + c / 2 * 8, row = at / 128 * 8 + at % 4 * 2 + c % 2;
            if (row >= rows) continue;
            float halves[PAIR] = {};
            for (u32 part = 0; part < cut.splits; part++) {
                u32 place = (tile * cut.splits + part) * SUMS + at;
                halves[0] += partial[place];
                halves[1] += load_other(sums_at + place * 4, rank ^ 1);
            }
            float v = (rank == 0 ? halves[0] + halves[1] : halves[1] + halves[0]) * factor + (p.bias ? p.bias[output] : 0.0f);
            if (p.function == RELU2) v = fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
            else if (p.function != IDENTITY) v = apply_rare(p.function, v);
            store(p.out, start + row, output, v, p.how);
        }
        meet_cluster();
        first += count;
    }
}

#define FORM(NT)                                                                                               \
    extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(THREADS, 1)                      \
        matmul_few_sm90_##NT(const __grid_constant__ Dense p) {                                                \
        few<NT>(p);                                                                                            \
    }
FORM(1)
FORM(2)
FORM(4)
