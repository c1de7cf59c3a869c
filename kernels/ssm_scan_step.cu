// Mamba2's recurrence for segments of one token (the formula is in ssm_scan.cu); P = head_dim, N = state.
//
// x, out [rows, heads * P], b, c [rows, groups * N], dt [rows, heads], all f32 or all bf16; params [3, heads] f32: A_log, D,
// dt_bias; state [slots * heads * P, N] f32; table [segments]. Everything is computed in f32.
//
// Pure state traffic: a warp takes ROWS rows of one head, a lane 16 bytes of each, all on their way before the kernels
// before this one are done, since only the step before wrote them. One block of 8 warps scans 8 * ROWS rows (blockIdx.x =
// head * tiles + tile, blockIdx.y = segment). Limits: N a multiple of 4, at most 128 * PIECES.
#include "common.cuh"

constexpr int ROWS = 4;

// Twin of `Scan` in ssm_scan.rs.
struct Scan {
    Window x, b, c, dt, out, state;
    const float* params;
    const Segment* table;
    u32 heads, head_dim, state_size, tiles;
    float low, high;
};

template <class A>
__device__ inline float4 load_four(const A* from) {
    return make_float4(widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3]));
}

template <class A, int PIECES>
__device__ inline void step(const Scan& p) {
    release_next();
    Segment segment = p.table[blockIdx.y];
    u32 lane = threadIdx.x % 32, n = p.state_size, head = blockIdx.x / p.tiles;
    u32 first = (blockIdx.x % p.tiles * 8 + threadIdx.x / 32) * ROWS;
    float a_log = -expf(p.params[head]), skip = p.params[p.heads + head], bias = p.params[2 * p.heads + head];
    float* states = reinterpret_cast<float*>(p.state.data) +
                    ((u64(segment.slot) * p.heads + head) * p.head_dim + first) * p.state.stride;
    float4 s[ROWS][PIECES];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            u32 col = 4 * (lane + 32 * i);
            bool there = segment.len > 0 && segment.position > 0 && first + r < p.head_dim && col < n;
            s[r][i] = make_float4(0, 0, 0, 0);
            if (there) s[r][i] = *reinterpret_cast<const float4*>(states + r * p.state.stride + col);
        }
    }
    await_previous();
    if (segment.len == 0) return;
    u64 row = segment.first_row;
    u32 group = head / (p.heads / (p.b.cols / n));
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
            if (first + r < p.head_dim && col < n) *reinterpret_cast<float4*>(states + r * p.state.stride + col) = v;
        }
    }
    A* out = reinterpret_cast<A*>(p.out.data) + row * p.out.stride + head * p.head_dim + first;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(y[r]) + skip * x[r];
        if (lane == r && first + r < p.head_dim) narrow(out[r], sum);
    }
}

extern "C" __global__ void __launch_bounds__(256) ssm_scan_step_f32_1(const __grid_constant__ Scan p) { step<float, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) ssm_scan_step_f32_2(const __grid_constant__ Scan p) { step<float, 2>(p); }
extern "C" __global__ void __launch_bounds__(256) ssm_scan_step_bf16_1(const __grid_constant__ Scan p) { step<u16, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) ssm_scan_step_bf16_2(const __grid_constant__ Scan p) { step<u16, 2>(p); }
