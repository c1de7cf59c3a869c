// The k largest values of each row with their columns, largest first, ties to the lowest column.
//
// x [rows, cols] f32; values [rows, k] f32 and indices [rows, k] u32 with row strides; keys between rounds
// [rows, candidates]. A round sorts tiles of 2,048 keys and keeps the k best of each; rounds go on until one tile is
// left. One block of 1,024 threads sorts one tile of one row (blockIdx.x = row, blockIdx.y = tile) by a bitonic network.
#include "common.cuh"

constexpr u32 TILE = 2048;

// Sorts falling.
__device__ inline void sort(u64* keys) {
    for (u32 width = 2; width <= TILE; width *= 2) {
        for (u32 step = width / 2; step > 0; step /= 2) {
            __syncthreads();
            u32 low = threadIdx.x / step * step * 2 + threadIdx.x % step, high = low + step;
            u64 a = keys[low], b = keys[high];
            if ((a < b) == ((low & width) == 0)) {
                keys[low] = b;
                keys[high] = a;
            }
        }
    }
    __syncthreads();
}

// The first round reads x, later ones the keys of the round before: `count` a row.
extern "C" __global__ void __launch_bounds__(1024) top_k_round(Window x, const u64* before, u32 count, u32 k,
                                                               u64* after) {
    __shared__ u64 keys[TILE];
    u32 first = blockIdx.y * TILE;
    const float* row = reinterpret_cast<const float*>(x.data) + blockIdx.x * x.stride;
    for (u32 i = threadIdx.x; i < TILE; i += blockDim.x) {
        u32 place = first + i;
        u64 key = 0;
        if (place < count) key = before ? before[u64(blockIdx.x) * count + place] : rank_key(row[place], place);
        keys[i] = key;
    }
    sort(keys);
    for (u32 i = threadIdx.x; i < k; i += blockDim.x) {
        after[(u64(blockIdx.x) * gridDim.y + blockIdx.y) * k + i] = keys[i];
    }
}

extern "C" __global__ void top_k_store(const u64* keys, u32 k, Window values, Window indices) {
    for (u32 i = threadIdx.x; i < k; i += blockDim.x) {
        u64 key = keys[u64(blockIdx.x) * k + i];
        reinterpret_cast<float*>(values.data)[blockIdx.x * values.stride + i] = key_value(key);
        reinterpret_cast<u32*>(indices.data)[blockIdx.x * indices.stride + i] = key_index(key);
    }
}
