// Chooses each row's experts and runs their first product: out[row * top_k + choice] = f(x[row] weight[choice]^T).
//
// logits [rows, experts] f32, bias [experts] f32 or null, ids [rows, top_k] u32, weights [rows, top_k] f32, x [rows, inputs]
// bf16, weight [experts, outputs, inputs] in BF16, FP8 or NVFP4, out [rows * top_k, outputs].
//
// The rule and its limits: common_choice.cuh. Every block finds the choices of its pair's row for itself. blockIdx.y = pair;
// the first block of a row writes its ids and weights.
#include "common_choice.cuh"
#include "common_vec.cuh"

struct Stage {
    const MoeUp& p;
    u32 row;
    template <int FORMAT>
    __device__ inline void fill(uint4* staging) const {
        const u16* x = reinterpret_cast<const u16*>(p.x.data) + row * p.x.stride;
        stage_rows<FORMAT>(staging, 1, p.w.cols, [&](u32) { return x; });
    }
};

extern "C" __global__ void __launch_bounds__(256, 4) moe_up(const __grid_constant__ MoeUp p) {
    extern __shared__ uint4 memory[];
    __shared__ alignas(16) char ring[VEC_RING];
    __shared__ float partial[2 * VEC_THREADS];
    __shared__ Choice found;
    u32 row = blockIdx.y / p.rule.top_k, choice = blockIdx.y % p.rule.top_k;
    release_next();
    await_previous();
    choose(p, row, found);
    if (choice == 0 && blockIdx.x == 0 && threadIdx.x < 32) write_choice(p, row, found);
    u32 expert = found.ids[choice];
    Stage stage = {p, row};
    Groups groups = {blockIdx.x, gridDim.x, p.groups, p.splits};
    product_any<1>(p.w, expert, groups, 1, memory, ring, partial, stage, [&](u32 output, u32, float v) {
        store(p.out, blockIdx.y, output, apply_rare(p.function, v));
    });
}
