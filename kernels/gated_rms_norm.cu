// out = weight * norm(y * silu(z)), or weight * norm(y) * silu(z), per group of columns, in f32.
//
// y, z, out [rows, cols] of any float dtype, weight [cols] f32; groups of `width` columns.
// One block of whole warps norms one group of one row: blockIdx.x = row * groups + group.
//
// gated_rms_norm_fours: f32 and bf16 in whole fours, groups of up to 512 columns; one warp norms one group of one row.
#include "common_fours.cuh"

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

extern "C" __global__ void __launch_bounds__(256) gated_rms_norm_fours(Window y, Window z, const float* weight, u32 groups,
                                                                       float eps, u32 gate_first, Window out, u32 count) {
    release_next();
    await_previous();
    constexpr u32 MOST = 4;
    u32 item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (item >= count) return;
    u32 row = item / groups, width = y.cols / groups, first = item % groups * width;
    float4 v[MOST], gate[MOST];
    float sum = 0.0f;
    bool rounded = out.dtype == BF16;
    auto silu_of = [&](float g) { return rounded ? quick_silu(g) : silu(g); };
#pragma unroll
    for (u32 k = 0; k < MOST; k++) {
        u32 i = (k * 32 + lane) * 4;
        v[k] = gate[k] = make_float4(0, 0, 0, 0);
        if (i >= width) continue;
        v[k] = load_four(y, row, first + i);
        float4 g = load_four(z, row, first + i);
        gate[k] = make_float4(silu_of(g.x), silu_of(g.y), silu_of(g.z), silu_of(g.w));
        if (gate_first) {
            v[k] = make_float4(v[k].x * gate[k].x, v[k].y * gate[k].y, v[k].z * gate[k].z, v[k].w * gate[k].w);
            gate[k] = make_float4(1, 1, 1, 1);
        }
        sum += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
    }
    float inverse = 1.0f / sqrtf(warp_sum(sum) / float(width) + eps);
#pragma unroll
    for (u32 k = 0; k < MOST; k++) {
        u32 i = (k * 32 + lane) * 4;
        if (i >= width) break;
        float4 w = *reinterpret_cast<const float4*>(weight + first + i), r = v[k], g = gate[k];
        r = make_float4(r.x * inverse * w.x * g.x, r.y * inverse * w.y * g.y, r.z * inverse * w.z * g.z, r.w * inverse * w.w * g.w);
        store_four(out, row, first + i, r);
    }
}
