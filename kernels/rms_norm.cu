// out = weight * x / sqrt(mean over each group of x^2 + eps), in f32.
//
// x, out [rows, cols] of any float dtype, weight [cols] f32; groups of `width` columns.
// One block of whole warps norms one group of one row: blockIdx.x = row * groups + group.
//
// rms_norm_fours: the same for f32 and bf16 in whole fours, up to 16 elements a thread, each read once.
#include "common_fours.cuh"

extern "C" __global__ void rms_norm(Window x, const float* weight, u32 groups, float eps, Window out) {
    release_next();
    await_previous();
    __shared__ float scratch[32];
    u32 row = blockIdx.x / groups, width = x.cols / groups, first = blockIdx.x % groups * width;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float v = load(x, row, first + i);
        sum += v * v;
    }
    float inverse = 1.0f / sqrtf(block_sum(sum, scratch) / float(width) + eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        store(out, row, first + i, load(x, row, first + i) * inverse * weight[first + i]);
    }
}

extern "C" __global__ void rms_norm_fours(Window x, const float* weight, u32 groups, float eps, Window out) {
    release_next();
    await_previous();
    constexpr u32 MOST = 4;
    __shared__ float scratch[32];
    u32 row = blockIdx.x / groups, width = x.cols / groups, first = blockIdx.x % groups * width;
    float4 v[MOST];
    float sum = 0.0f;
#pragma unroll
    for (u32 k = 0; k < MOST; k++) {
        u32 i = (k * blockDim.x + threadIdx.x) * 4;
        v[k] = i < width ? load_four(x, row, first + i) : make_float4(0, 0, 0, 0);
        sum += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
    }
    float inverse = 1.0f / sqrtf(block_sum(sum, scratch) / float(width) + eps);
#pragma unroll
    for (u32 k = 0; k < MOST; k++) {
        u32 i = (k * blockDim.x + threadIdx.x) * 4;
        if (i >= width) break;
        float4 w = *reinterpret_cast<const float4*>(weight + first + i), r = v[k];
        r = make_float4(r.x * inverse * w.x, r.y * inverse * w.y, r.z * inverse * w.z, r.w * inverse * w.w);
        store_four(out, row, first + i, r);
    }
}
