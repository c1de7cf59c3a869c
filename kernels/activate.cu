// out = f(x), or f(gate) * x where there is a gate, in f32.
//
// x, gate, out [rows, cols] of any float dtype. One thread walks elements of the dense index row * cols + col.
#include "common.cuh"

extern "C" __global__ void activate(Window x, Window gate, u32 function, Window out, u64 count) {
    release_next();
    await_previous();
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        u64 row = i / x.cols;
        u32 col = u32(i % x.cols);
        float v = load(x, row, col);
        store(out, row, col, gate.data ? apply(function, load(gate, row, col)) * v : apply(function, v));
    }
}
