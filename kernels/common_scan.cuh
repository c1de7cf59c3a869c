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
