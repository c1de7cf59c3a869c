// out = x weight^T + bias, or out += scale * (x weight^T + bias), for up to 4 * NT rows of bf16 (common_vec.cuh).
//
// x [rows, inputs], weight [outputs, inputs] in BF16, FP8 or NVFP4 with whole 16-byte pieces in a row, bias [outputs] f32
// or null, out [rows, outputs]. A block walks groups of tiles, gridDim.x apart.
#include "common_lines.cuh"

// Twin of `Vec` in matmul.rs.
struct Vec {
    Window x;
    Bank w;
    const float* bias;
    Store how;
    Window out;
    u32 rows, groups, splits, unused;
};

struct Stage {
    const Vec& p;
    template <int FORMAT>
    __device__ inline void fill(uint4* staging) const {
        await_previous();
        const u16* x = reinterpret_cast<const u16*>(p.x.data);
        stage_rows<FORMAT>(staging, p.rows, p.w.cols, [&](u32 row) { return x + row * p.x.stride; });
    }
};

template <int NT>
__device__ inline void vec(const Vec& p) {
    extern __shared__ uint4 memory[];
    __shared__ alignas(16) char ring[VEC_RING];
    __shared__ float partial[2 * VEC_WARPS * NT * 32];
    release_next();
    Stage stage = {p};
    Groups groups = {blockIdx.x, gridDim.x, p.groups, p.splits};
    product_any<NT>(p.w, 0, groups, p.rows, memory, ring, partial, stage, [&](u32 output, u32 row, float v) {
        store(p.out, row, output, v + (p.bias ? p.bias[output] : 0.0f), p.how);
    });
}

// The same for up to 4 rows by lines, BF16.
__device__ inline void lines(const Vec& p) {
    extern __shared__ uint4 memory[];
    release_next();
    Stage stage = {p};
    Groups groups = {blockIdx.x, gridDim.x, p.groups, p.splits};
    product_lines<W_BF16, 1>(p.w, groups, p.rows, memory, stage, [&](u32 output, u32 row, float v) {
        store(p.out, row, output, v + (p.bias ? p.bias[output] : 0.0f), p.how);
    });
}

extern "C" __global__ void __launch_bounds__(256, 4) matmul_vec_lines(const __grid_constant__ Vec p) { lines(p); }
extern "C" __global__ void __launch_bounds__(256, 4) matmul_vec_1(const __grid_constant__ Vec p) { vec<1>(p); }
extern "C" __global__ void __launch_bounds__(256, 3) matmul_vec_2(const __grid_constant__ Vec p) { vec<2>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) matmul_vec_4(const __grid_constant__ Vec p) { vec<4>(p); }
