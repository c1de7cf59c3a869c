// x *= factor, in place, in f32.
//
// x [rows, cols] of any float dtype. One thread walks elements of the dense index row * cols + col.
#include "common.cuh"

extern "C" __global__ void scale(Window x, float factor, u64 count) {
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        u64 row = i / x.cols;
        u32 col = u32(i % x.cols);
        store(x, row, col, load(x, row, col) * factor);
    }
}
