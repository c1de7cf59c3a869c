// out = weight * x / sqrt(mean over each group of x^2 + eps), in f32.
//
// x, out [rows, cols] of any float dtype, weight [cols] f32; groups of `width` columns.
// One block of whole warps norms one group of one row: blockIdx.x = row * groups + group.
#include "common.cuh"

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
