// Arguments of the scans, and what reads matrices for them.
#pragma once
#include "common.cuh"

// Twin of `Scan` in ssm_scan.rs.
struct Scan {
    Window x, b, c, dt, out, state;
    const float* params;
    const Segment* table;
    u32 heads, head_dim, state_size, tiles;
    float low, high;
};

__device__ inline float4 widen_four(uint2 v) {
    return make_float4(bits_f32(v.x << 16), bits_f32(v.x & 0xffff0000u), bits_f32(v.y << 16), bits_f32(v.y & 0xffff0000u));
}

// Numbers of the state, f32 or bf16, the first `place` elements from its start: four whole ones, or one.
__device__ inline float4 state_four(const Window& state, u64 place) {
    if (state.dtype == F32) return *reinterpret_cast<const float4*>(state.data + place * 4);
    return widen_four(*reinterpret_cast<const uint2*>(state.data + place * 2));
}

__device__ inline void set_state_four(const Window& state, u64 place, float4 v) {
    if (state.dtype == F32) {
        *reinterpret_cast<float4*>(state.data + place * 4) = v;
    } else {
        *reinterpret_cast<uint2*>(state.data + place * 2) = make_uint2(f32_bf16x2(v.x, v.y), f32_bf16x2(v.z, v.w));
    }
}

// Two, into or out of v.
template <bool OUT>
__device__ inline void move_state_two(const Window& state, u64 place, float* v) {
    if (state.dtype == F32) {
        float2* both = reinterpret_cast<float2*>(state.data + place * 4);
        if (OUT) *both = make_float2(v[0], v[1]);
        else v[0] = both->x, v[1] = both->y;
    } else {
        u32* both = reinterpret_cast<u32*>(state.data + place * 2);
        if (OUT) *both = f32_bf16x2(v[0], v[1]);
        else v[0] = bits_f32(*both << 16), v[1] = bits_f32(*both & 0xffff0000u);
    }
}

__device__ inline float state_one(const Window& state, u64 place) {
    if (state.dtype == F32) return *reinterpret_cast<const float*>(state.data + place * 4);
    return bf16_f32(*reinterpret_cast<const u16*>(state.data + place * 2));
}

__device__ inline void set_state_one(const Window& state, u64 place, float v) {
    if (state.dtype == F32) {
        *reinterpret_cast<float*>(state.data + place * 4) = v;
    } else {
        *reinterpret_cast<u16*>(state.data + place * 2) = f32_bf16(v);
    }
}

__device__ inline float power_of_2(float v) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out;
}

// Four 8 by 8 matrices of 16-bit elements; lane i names row i % 8 of matrix i / 8.
__device__ inline void matrices(u32* r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ inline void matrices_transposed(u32* r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ inline void put(u32 address, u32 v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v)); }
