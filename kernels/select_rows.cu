// out[i] = x[indices[i]].
//
// x [rows, cols], out [count, cols] of any float dtype, indices [count, 1] u32 with a row stride.
// One block copies one row.
#include "common.cuh"

extern "C" __global__ void select_rows(Window x, Window indices, Window out) {
    release_next();
    await_previous();
    u32 row = reinterpret_cast<const u32*>(indices.data)[blockIdx.x * indices.stride];
    for (u32 col = threadIdx.x; col < out.cols; col += blockDim.x) {
        store(out, blockIdx.x, col, load(x, row, col));
    }
}
