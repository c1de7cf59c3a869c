// A stable counting sort of the router's choices by expert.
//
// ids [rows, top_k] u32 with a row stride; order [pairs] u32 lists pairs row * top_k + choice by expert, rising within
// one; offsets [experts + 1] u32 are the first entries.
//
// One block of whole warps places the pairs of one expert, in two walks over the ids: how many belong to lower experts and how
// many of its own each warp's run has, then where each of its own goes. No block waits for another.
#include "common.cuh"

constexpr u32 SPAN = 128;  // pairs that a warp looks at together, four a lane

struct Ids {
    const u32* data;
    u32 stride, cols, pairs;

    // PADDING past the last pair.
    __device__ inline u32 of(u32 pair) const {
        if (pair >= pairs) return PADDING;
        return data[stride == cols ? pair : pair / cols * stride + pair % cols];
    }
    // Those of a lane, 32 pairs apart.
    __device__ inline uint4 four(u32 span) const {
        u32 pair = span * SPAN + threadIdx.x % 32;
        return make_uint4(of(pair), of(pair + 32), of(pair + 64), of(pair + 96));
    }
};

extern "C" __global__ void __launch_bounds__(1024) moe_group(Window window, u32 pairs, u32* order, u32* offsets) {
    await_previous();
    __shared__ u32 lowers[32], owns[32];
    Ids ids = {reinterpret_cast<const u32*>(window.data), u32(window.stride), window.cols, pairs};
    u32 expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u32 spans = (pairs + SPAN - 1) / SPAN, each = (spans + warps - 1) / warps;
    u32 first = min(warp * each, spans), last = min(first + each, spans), lower = 0, own = 0;
#pragma unroll 1
    for (u32 span = first; span < last; span++) {
        uint4 four = ids.four(span);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            lower += (&four.x)[i] < expert;
            own += (&four.x)[i] == expert;
        }
    }
    lower = __reduce_add_sync(ALL, lower);
    own = __reduce_add_sync(ALL, own);
    if (lane == 0) lowers[warp] = lower, owns[warp] = own;
    __syncthreads();
    u32 start = __reduce_add_sync(ALL, lane < warps ? lowers[lane] : 0);
    u32 next = start + __reduce_add_sync(ALL, lane < warp ? owns[lane] : 0);
    if (threadIdx.x == 0) {
        offsets[expert] = start;
        if (expert + 1 == gridDim.x) offsets[expert + 1] = pairs;
    }
#pragma unroll 1
    for (u32 span = first; span < last && own > 0; span++) {
        uint4 four = ids.four(span);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            bool mine = (&four.x)[i] == expert;
            u32 votes = __ballot_sync(ALL, mine);
            if (mine) order[next + __popc(votes & ((1u << lane) - 1))] = span * SPAN + 32 * i + lane;
            next += __popc(votes);
        }
    }
    // Kernels that start from here on may read the groups at once.
    __threadfence();
    release_next();
}
