// A stable counting sort of the router's choices by expert.
//
// ids [rows, top_k] u32 with a row stride; order [pairs] u32 lists pairs row * top_k + choice by expert, rising within
// one; offsets [experts + 1] u32 are the first entries.
//
// One block of whole warps places the pairs of one expert, in two walks over the ids: how many belong to lower experts,
// then where each of its own goes. No block waits for another.
#include "common.cuh"

__device__ inline u32 id_of(const Window& ids, u32 pair) {
    return reinterpret_cast<const u32*>(ids.data)[u64(pair / ids.cols) * ids.stride + pair % ids.cols];
}

extern "C" __global__ void __launch_bounds__(1024) moe_group(Window ids, u32 pairs, u32* order, u32* offsets) {
    await_previous();
    __shared__ u32 counts[32];
    u32 expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u32 lower = 0;
    for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x) lower += id_of(ids, pair) < expert;
    lower = __reduce_add_sync(ALL, lower);
    if (lane == 0) counts[warp] = lower;
    __syncthreads();
    u32 next = __reduce_add_sync(ALL, lane < warps ? counts[lane] : 0);
    if (threadIdx.x == 0) {
        offsets[expert] = next;
        if (expert + 1 == gridDim.x) offsets[expert + 1] = pairs;
    }
    for (u32 first = 0; first < pairs; first += blockDim.x) {
        u32 pair = first + threadIdx.x;
        bool mine = pair < pairs && id_of(ids, pair) == expert;
        u32 votes = __ballot_sync(ALL, mine);
        __syncthreads();
        if (lane == 0) counts[warp] = __popc(votes);
        __syncthreads();
        u32 count = lane < warps ? counts[lane] : 0;
        u32 before = __reduce_add_sync(ALL, lane < warp ? count : 0);
        if (mine) order[next + before + __popc(votes & ((1u << lane) - 1))] = pair;
        next += __reduce_add_sync(ALL, count);
    }
    // Kernels that start from here on may read the groups at once.
    __threadfence();
    release_next();
}
