// A warp's part of the scan of one token: a few rows of one head, a lane four elements of each.
#pragma once
#include "common_scan.cuh"

__device__ inline float4 load_four(const float* from) { return make_float4(from[0], from[1], from[2], from[3]); }
__device__ inline float4 load_four(const u16* from) {
    if (u64(from) % 8 == 0) return widen_four(*reinterpret_cast<const uint2*>(from));
    return make_float4(bf16_f32(from[0]), bf16_f32(from[1]), bf16_f32(from[2]), bf16_f32(from[3]));
}

template <class A, int ROWS, int PIECES>
struct Rows {
    const Scan& p;
    Segment segment;
    u32 head, first;  // rows of the head from `first` on
    float4 s[ROWS][PIECES];

    __device__ inline u64 at(u32 r, u32 col) const {
        u64 row = (u64(segment.slot) * p.heads + head) * p.head_dim + first + r;
        return row * p.state.stride + col;
    }
    __device__ inline bool there(u32 r, u32 col) const { return first + r < p.head_dim && col < p.state_size; }

    // Reads the state, which no kernel of this step writes. What is bf16 stays so until `scan`: all is on its way at once.
    __device__ inline void fetch() {
        if (p.state.dtype == F32) fetch_as<float4>();
        else fetch_as<uint2>();
    }
    __device__ inline void take(float4& to, float4 v) { to = v; }
    __device__ inline void take(float4& to, uint2 v) { to.x = bits_f32(v.x), to.y = bits_f32(v.y); }

    template <class Four>
    __device__ inline void fetch_as() {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                u32 col = 4 * (lane + 32 * i);
                s[r][i] = make_float4(0, 0, 0, 0);
                if (segment.len == 0 || segment.position == 0 || !there(r, col)) continue;
                take(s[r][i], *reinterpret_cast<const Four*>(p.state.data + at(r, col) * (sizeof(Four) / 4)));
            }
        }
    }

    // Moves the rows on by the segment's token and writes their outputs.
    __device__ inline void scan(float a_log, float skip, float bias) {
        u32 lane = threadIdx.x % 32, n = p.state_size, group = head / (p.heads / (p.b.cols / n));
        u64 row = segment.first_row;
        const A* xs = reinterpret_cast<const A*>(p.x.data) + row * p.x.stride + head * p.head_dim + first;
        float dt = widen(reinterpret_cast<const A*>(p.dt.data)[row * p.dt.stride + head]);
        float4 b[PIECES], c[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            u32 col = 4 * (lane + 32 * i);
            b[i] = c[i] = make_float4(0, 0, 0, 0);
            if (col >= n) continue;
            b[i] = load_four(reinterpret_cast<const A*>(p.b.data) + row * p.b.stride + group * n + col);
            c[i] = load_four(reinterpret_cast<const A*>(p.c.data) + row * p.c.stride + group * n + col);
        }
        if (p.state.dtype != F32) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int i = 0; i < PIECES; i++) {
                    s[r][i] = widen_four(make_uint2(__float_as_uint(s[r][i].x), __float_as_uint(s[r][i].y)));
                }
            }
        }
        float x[ROWS], y[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) x[r] = first + r < p.head_dim ? widen(xs[r]) : 0.0f;
        dt = fminf(fmaxf(softplus(dt + bias), p.low), p.high);
        float a = expf(a_log * dt);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float u = dt * x[r];
            y[r] = 0.0f;
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                float4& v = s[r][i];
                v.x = fmaf(a, v.x, u * b[i].x);
                v.y = fmaf(a, v.y, u * b[i].y);
                v.z = fmaf(a, v.z, u * b[i].z);
                v.w = fmaf(a, v.w, u * b[i].w);
                y[r] += fmaf(v.x, c[i].x, v.y * c[i].y) + fmaf(v.z, c[i].z, v.w * c[i].w);
                u32 col = 4 * (lane + 32 * i);
                if (there(r, col)) set_state_four(p.state, at(r, col), v);
            }
        }
        A* out = reinterpret_cast<A*>(p.out.data) + row * p.out.stride + head * p.head_dim + first;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = warp_sum(y[r]) + skip * x[r];
            if (lane == r && first + r < p.head_dim) narrow(out[r], sum);
        }
    }
};
