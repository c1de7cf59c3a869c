// out[row] (+)= sum over choices of weights[row, choice] * x[row * top_k + choice], in f32, and of what lies beside them.
//
// x [rows * top_k, cols], out [rows, cols] of any float dtype, weights [rows, top_k] f32 with a row stride; beside [parts, rows,
// cols] f32, the shared expert's sums (moe_matmul_few_sm90.cu).
// One block sums one row: blockIdx.x = row, blockIdx.y = tile of columns.
//
// moe_combine_fours: the same for f32 and bf16 in whole fours, four columns a thread.
#include "common_fours.cuh"

extern "C" __global__ void moe_combine(Window x, Window weights, Store how, Window out, const float* beside, u32 parts) {
    release_next();
    await_previous();
    u32 row = blockIdx.x, top_k = weights.cols;
    u32 col = blockIdx.y * blockDim.x + threadIdx.x;
    if (col >= out.cols) return;
    float sum = 0.0f;
    for (u32 choice = 0; choice < top_k; choice++) {
        sum += load(weights, row, choice) * load(x, u64(row) * top_k + choice, col);
    }
    for (u32 part = 0; part < parts; part++) sum += beside[u64(part * gridDim.x + row) * out.cols + col];
    store(out, row, col, sum, how);
}

// Eight blocks a multiprocessor: what counts is how many loads are on their way.
extern "C" __global__ void __launch_bounds__(256, 8) moe_combine_fours(Window x, Window weights, Store how, Window out,
                                                                         const float* beside, u32 parts) {
    release_next();
    await_previous();
    u32 row = blockIdx.x, top_k = weights.cols;
    u32 col = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
    if (col >= out.cols) return;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (u32 choice = 0; choice < top_k; choice++) {
        float4 v = load_four(x, u64(row) * top_k + choice, col);
        float w = load(weights, row, choice);
        sum = make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z), fmaf(w, v.w, sum.w));
    }
    for (u32 part = 0; part < parts; part++) {
        float4 v = *reinterpret_cast<const float4*>(beside + u64(part * gridDim.x + row) * out.cols + col);
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    store_four(out, row, col, sum, how);
}
