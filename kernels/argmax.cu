// out[r] = argmax x[r], ties to the lowest index.
//
// x [rows, cols] f32, out [rows, 1] u32 with a row stride, partial [rows, parts] keys.
// Stage 1: one block finds the best key of one part of one row (blockIdx.x = row, blockIdx.y = part).
// Stage 2: one warp finds the best of a row's parts.
#include "common.cuh"

extern "C" __global__ void argmax_parts(Window x, u64* partial) {
    release_next();
    await_previous();
    __shared__ u64 best[32];
    u32 width = (x.cols + gridDim.y - 1) / gridDim.y, first = blockIdx.y * width;
    u32 end = min(first + width, x.cols);
    const float* row = reinterpret_cast<const float*>(x.data) + blockIdx.x * x.stride;
    u64 key = 0;
    for (u32 i = first + threadIdx.x; i < end; i += blockDim.x) {
        u64 other = rank_key(row[i], i);
        key = other > key ? other : key;
    }
    key = warp_max(key);
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = key;
    __syncthreads();
    if (threadIdx.x < 32) {
        key = warp_max(threadIdx.x < blockDim.x / 32 ? best[threadIdx.x] : 0);
        if (threadIdx.x == 0) partial[u64(blockIdx.x) * gridDim.y + blockIdx.y] = key;
    }
}

extern "C" __global__ void argmax_rows(const u64* partial, u32 parts, Window out) {
    release_next();
    await_previous();
    u64 key = 0;
    for (u32 i = threadIdx.x; i < parts; i += 32) {
        u64 other = partial[u64(blockIdx.x) * parts + i];
        key = other > key ? other : key;
    }
    key = warp_max(key);
    if (threadIdx.x == 0) reinterpret_cast<u32*>(out.data)[blockIdx.x * out.stride] = key_index(key);
}
