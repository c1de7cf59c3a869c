// out = weight * norm(y * silu(z)), or weight * norm(y) * silu(z), per group of columns, in f32.
//
// y, z, out [rows, cols] of any float dtype, weight [cols] f32; groups of `width` columns.
// One block of whole warps norms one group of one row: blockIdx.x = row * groups + group.
#include "common.cuh"

extern "C" __global__ void gated_rms_norm(Window y, Window z, const float* weight, u32 groups, float eps,
                                          u32 gate_first, Window out) {
    release_next();
    await_previous();
    __shared__ float scratch[32];
    u32 row = blockIdx.x / groups, width = y.cols / groups, first = blockIdx.x % groups * width;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float v = load(y, row, first + i);
        if (gate_first) v *= silu(load(z, row, first + i));
        sum += v * v;
    }
    float inverse = 1.0f / sqrtf(block_sum(sum, scratch) / float(width) + eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float gate = silu(load(z, row, first + i));
        store(out, row, first + i, load(y, row, first + i) * inverse * weight[first + i] * gate);
    }
}
