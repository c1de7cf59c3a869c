// Chooses the experts of each row, as moe_route_ranked, and sorts the pairs by expert, as moe_group, in one launch.
//
// The operands are those of moe_route.cu and moe_group.cu. One block routes one row; the last one to be done sorts them all: a
// thread finds the pairs of one expert. Limits: 256 experts, 32 choices, MOST pairs.
#include "common_route.cuh"

constexpr u32 MOST = 512;

__device__ u32 done;  // blocks that have written their choice; 0 between launches

// Calls `each(pair)` for the pairs of the thread's expert, rising.
template <class EACH>
__device__ inline void walk(const uint4* experts, u32 pairs, EACH each) {
#pragma unroll 1
    for (u32 i = 0; 4 * i < pairs; i++) {
        uint4 four = experts[i];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if ((&four.x)[k] == threadIdx.x) each(4 * i + k);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) moe_sort(Window logits, const float* bias, Rule rule, Window ids,
                                                           Window weights, u32* order, u32* offsets) {
    __shared__ Routing routing;
    __shared__ uint4 chosen[MOST / 4];
    __shared__ u32 scratch[32];
    __shared__ bool last;
    route_row(logits, bias, rule, ids, weights, blockIdx.x, routing);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&done, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    if (threadIdx.x == 0) done = 0;
    __threadfence();
    u32 experts = logits.cols, top_k = rule.top_k, pairs = gridDim.x * top_k;
    for (u32 pair = threadIdx.x; pair < (pairs + 3) / 4 * 4; pair += blockDim.x) {
        const u32* id = reinterpret_cast<const u32*>(ids.data) + pair / top_k * ids.stride + pair % top_k;
        reinterpret_cast<u32*>(chosen)[pair] = pair < pairs ? __ldcg(id) : PADDING;
    }
    __syncthreads();
    u32 count = 0, all;
    walk(chosen, pairs, [&](u32) { count++; });
    u32 next = block_before(count, scratch, all);
    if (threadIdx.x < experts) offsets[threadIdx.x] = next;
    if (threadIdx.x == 0) offsets[experts] = pairs;
    walk(chosen, pairs, [&](u32 pair) { order[next++] = pair; });
    // Kernels that start from here on may read the groups at once.
    __threadfence();
    release_next();
}
