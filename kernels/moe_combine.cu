// out[row] (+)= sum over choices of weights[row, choice] * x[row * top_k + choice], in f32.
//
// x [rows * top_k, cols], out [rows, cols] of any float dtype, weights [rows, top_k] f32 with a row stride.
// One block sums one row: blockIdx.x = row, blockIdx.y = tile of columns.
#include "common.cuh"

extern "C" __global__ void moe_combine(Window x, Window weights, Store how, Window out) {
    release_next();
    await_previous();
    u32 row = blockIdx.x, top_k = weights.cols;
    u32 col = blockIdx.y * blockDim.x + threadIdx.x;
    if (col >= out.cols) return;
    float sum = 0.0f;
    for (u32 choice = 0; choice < top_k; choice++) {
        sum += load(weights, row, choice) * load(x, u64(row) * top_k + choice, col);
    }
    store(out, row, col, sum, how);
}
