// out[row * top_k + choice] = f(x[input row] weight[ids[row, choice]]^T) for many pairs on Hopper (moe_matmul.cu has the
// operands; common_sm90.cuh the method). NVFP4 weights, bf16 x and out; whole multiples of 64 inputs and 4 outputs.
//
// moe_matmul_sm90_MOST: one block computes 128 outputs by up to MOST pairs of one expert. An expert's
// pairs are dealt evenly over as few tiles as hold them, and a tile runs as narrow as its pairs allow, so that little is
// computed twice for experts of any popularity. blockIdx.x = outputs; y = tile over all experts, blocks past the last do
// nothing. What binds are waits inside a warp, so blocks are as small as lets three or two share a multiprocessor.
#include "common_moe.cuh"
#include "common_sm90.cuh"

struct Place {
    u32 expert, start, count;
};

// Tile `number` over all experts, for the whole block; `count` is 0 past the last.
__device__ inline void find_place(const Moe& p, u32 number, u32 most, Place& found, u32* scratch) {
    if (threadIdx.x == 0) found.count = 0;
    for (u32 base = 0, passed = 0; base < p.w.experts && passed <= number; base += WIDE_THREADS) {
        u32 expert = base + threadIdx.x, start = 0, pairs = 0, all;
        if (expert < p.w.experts) {
            start = p.offsets[expert];
            pairs = p.offsets[expert + 1] - start;
        }
        u32 tiles = (pairs + most - 1) / most, first = passed + block_before(tiles, scratch, all);
        if (number >= first && number < first + tiles) {
            u32 size = (pairs + tiles - 1) / tiles, skipped = (number - first) * size;
            found = {expert, start + skipped, min(size, pairs > skipped ? pairs - skipped : 0)};
        }
        passed += all;
        __syncthreads();
    }
}

template <int ROWS, int STAGES>
__device__ inline void wide(const Moe& p, const Place& place, const u32* pairs, char* memory) {
    using W = Wide<ROWS, STAGES>;
    u32 first = blockIdx.x * W::OUTPUTS;
    float sums[ROWS / 8][4] = {};
    auto source = [&](u32 i) {
        u32 pair = pairs[min(i, place.count - 1)];
        return u64(p.by_pair ? pair : pair / p.ids.cols);
    };
    W::run(p.w, place.expert, first, p.x, source, shared_address(memory), sums);
    float factor = p.w.scale[place.expert] * FACTOR<W_NVFP4>;
    Store replace = {0, 1.0f};
    W::finish(first, factor, sums, reinterpret_cast<float*>(memory), [&](u32 output, u32 row, float4 v) {
        if (output >= p.w.rows || row >= place.count) return;
        float* values = &v.x;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (p.function == RELU2) values[i] = fmaxf(values[i], 0.0f) * fmaxf(values[i], 0.0f);
            else if (p.function != IDENTITY) values[i] = apply_rare(p.function, values[i]);
        }
        store_four(p.out, pairs[row], output, v, replace);
    });
}

// The narrowest of several widths that holds the tile, the last one in any case.
template <int STAGES, int WIDTH, int... WIDER>
__device__ inline void choose(const Moe& p, const Place& place, const u32* pairs, char* memory) {
    if constexpr (sizeof...(WIDER) > 0) {
        if (place.count > WIDTH) return choose<STAGES, WIDER...>(p, place, pairs, memory);
    }
    wide<WIDTH, STAGES>(p, place, pairs, memory);
}

template <int MOST, int STAGES, int... WIDTHS>
__device__ inline void tiles(const Moe& p) {
    extern __shared__ __align__(1024) char memory[];
    __shared__ u32 pairs[MOST];
    __shared__ Place found;
    __shared__ u32 scratch[32];
    find_place(p, blockIdx.y, MOST, found, scratch);
    Place place = found;
    if (place.count == 0) return;
    for (u32 i = threadIdx.x; i < place.count; i += WIDE_THREADS) pairs[i] = p.order[place.start + i];
    __syncthreads();
    choose<STAGES, WIDTHS...>(p, place, pairs, memory);
}

extern "C" __global__ void __launch_bounds__(256, 3) moe_matmul_sm90_64(__grid_constant__ const Moe p) {
    tiles<64, 5, 16, 32, 48, 64>(p);
}
extern "C" __global__ void __launch_bounds__(256, 2) moe_matmul_sm90_128(__grid_constant__ const Moe p) {
    tiles<128, 5, 48, 80, 96, 112, 128>(p);
}
