// out += scale * x, in place, in f32.
//
// x, out [rows, cols] of any float dtype. One thread walks elements of the dense index row * cols + col.
#include "common.cuh"

extern "C" __global__ void add(Window x, float scale, Window out, u64 count) {
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        u64 row = i / x.cols;
        u32 col = u32(i % x.cols);
        store(out, row, col, load(out, row, col) + scale * load(x, row, col));
    }
}
