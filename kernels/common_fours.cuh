// Four neighbouring elements at a time, of f32 or bf16 windows with 16-byte rows.
#pragma once
#include "common.cuh"

__device__ inline float4 load_four(const Window& w, u64 row, u32 col) {
    u64 i = row * w.stride + col;
    if (w.dtype == F32) return *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(w.data) + i);
    uint2 v = *reinterpret_cast<const uint2*>(reinterpret_cast<const u16*>(w.data) + i);
    return make_float4(bits_f32(v.x << 16), bits_f32(v.x & 0xffff0000u), bits_f32(v.y << 16), bits_f32(v.y & 0xffff0000u));
}

__device__ inline void store_four(const Window& w, u64 row, u32 col, float4 v) {
    u64 i = row * w.stride + col;
    if (w.dtype == F32) *reinterpret_cast<float4*>(reinterpret_cast<float*>(w.data) + i) = v;
    else *reinterpret_cast<uint2*>(reinterpret_cast<u16*>(w.data) + i) = make_uint2(f32_bf16x2(v.x, v.y), f32_bf16x2(v.z, v.w));
}

__device__ inline void store_four(const Window& w, u64 row, u32 col, float4 v, const Store& how) {
    if (how.accumulate) {
        float4 old = load_four(w, row, col);
        v = make_float4(old.x + how.scale * v.x, old.y + how.scale * v.y, old.z + how.scale * v.z, old.w + how.scale * v.w);
    }
    store_four(w, row, col, v);
}
