// Chooses each row's experts and runs their first product: out[row * top_k + choice] = f(x[row] weight[choice]^T).
//
// logits [rows, experts] f32, bias [experts] f32 or null, ids [rows, top_k] u32, weights [rows, top_k] f32, x [rows, inputs]
// bf16, weight [experts, outputs, inputs] in BF16, FP8 or NVFP4, out [rows * top_k, outputs].
//
// The rule is that of moe_route.cu without groups, scores by sigmoid or by softmax over the chosen. Every warp finds the
// choices of its pair's row for itself. blockIdx.y = pair; the first block of a row writes its ids and weights. Limits: 256
// experts, 32 choices.
#include "common_route.cuh"
#include "common_vec.cuh"

// Twin of `MoeUp` in moe_up.rs.
struct MoeUp {
    Window logits;
    const float* bias;
    Window ids, weights, x;
    Bank w;
    Window out;
    Rule rule;
    u32 function, groups, splits;
};

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
    u32 row = blockIdx.y / p.rule.top_k, choice = blockIdx.y % p.rule.top_k;
    release_next();
    await_previous();
    u32 chosen;
    float score;
    choose(p.logits, p.bias, p.rule, row, chosen, score);
    if (choice == 0 && blockIdx.x == 0 && threadIdx.x < 32) write_choice(p.rule, p.ids, p.weights, row, chosen, score);
    u32 expert = __shfl_sync(ALL, chosen, choice);
    Stage stage = {p, row};
    Groups groups = {blockIdx.x, gridDim.x, p.groups, p.splits};
    product_any<1>(p.w, expert, groups, 1, memory, ring, partial, stage, [&](u32 output, u32, float v) {
        store(p.out, blockIdx.y, output, apply_rare(p.function, v));
    });
}
