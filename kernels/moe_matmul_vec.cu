// out[pair] = f(x[input row] weight[expert]^T) for pairs sorted by expert, few of each (common_vec.cuh).
//
// The operands are those of moe_matmul.cu; weight in BF16, FP8 or NVFP4 with whole 16-byte pieces in a row. blockIdx.y =
// expert; a block walks groups of tiles, gridDim.x apart, for up to 8 pairs of its expert, and again for the next 8.
// Blocks of an expert that nobody chose do nothing.
#include "common_vec.cuh"

// Twin of `Few` in moe_matmul.rs.
struct Few {
    Window x;
    Bank w;
    const u32* order;
    const u32* offsets;
    Window out;
    u32 by_pair, top_k, function, groups, splits, unused;
};

constexpr u32 ROWS = 8;

struct Stage {
    const Few& p;
    const u32* pairs;
    u32 count;
    template <int FORMAT>
    __device__ inline void fill(uint4* staging) const {
        const u16* x = reinterpret_cast<const u16*>(p.x.data);
        stage_rows<FORMAT>(staging, count, p.w.cols, [&](u32 row) {
            return x + (p.by_pair ? pairs[row] : pairs[row] / p.top_k) * p.x.stride;
        });
    }
};

extern "C" __global__ void __launch_bounds__(256, 2) moe_matmul_vec(const __grid_constant__ Few p) {
    extern __shared__ uint4 memory[];
    __shared__ alignas(16) char ring[VEC_RING];
    __shared__ float partial[VEC_THREADS * 4];
    release_next();
    await_previous();
    u32 end = p.offsets[blockIdx.y + 1];
    for (u32 base = p.offsets[blockIdx.y]; base < end; base += ROWS) {
        const u32* pairs = p.order + base;
        u32 count = min(ROWS, end - base);
        Stage stage = {p, pairs, count};
        Groups groups = {blockIdx.x, gridDim.x, p.groups, p.splits};
        auto put = [&](u32 output, u32 row, float v) { store(p.out, pairs[row], output, apply_rare(p.function, v)); };
        product_any<2>(p.w, blockIdx.y, groups, count, memory, ring, partial, stage, put);
    }
}
