// out = f(x), or f(gate) * x where there is a gate, in f32.
//
// x, gate, out [rows, cols] of any float dtype. One thread walks elements of the dense index row * cols + col.
//
// activate_fours: the same for f32 and bf16 in whole fours; `count` is that of fours.
#include "common_fours.cuh"

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

extern "C" __global__ void activate_fours(Window x, Window gate, u32 function, Window out, u64 count) {
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        u64 row = i * 4 / x.cols;
        u32 col = u32(i * 4 % x.cols);
        float4 v = load_four(x, row, col), g = gate.data ? load_four(gate, row, col) : v;
        float4 f = make_float4(apply(function, g.x), apply(function, g.y), apply(function, g.z), apply(function, g.w));
        if (gate.data) f = make_float4(f.x * v.x, f.y * v.y, f.z * v.z, f.w * v.w);
        store_four(out, row, col, f);
    }
}
