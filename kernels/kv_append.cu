// Stores each row's key and value at row slot * context + position of the caches, rounded to their dtype.
//
// k, v [rows, kv_heads * head_dim] of any float dtype, caches [slots * context, kv_heads * head_dim], places [rows].
// Rows of no segment write nowhere. One block stores one row.
#include "common.cuh"

extern "C" __global__ void kv_append(Window k, Window v, Window cache_k, Window cache_v, u32 context,
                                     const RowPlace* places) {
    release_next();
    await_previous();
    RowPlace place = places[blockIdx.x];
    if (place.slot == PADDING) return;
    u64 row = u64(place.slot) * context + place.position;
    for (u32 col = threadIdx.x; col < k.cols; col += blockDim.x) {
        store(cache_k, row, col, load(k, blockIdx.x, col));
        store(cache_v, row, col, load(v, blockIdx.x, col));
    }
}
