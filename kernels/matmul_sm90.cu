// out = x weight^T + bias, or out += scale * (x weight^T + bias), for many rows on Hopper (matmul.cu has the operands;
// common_sm90.cuh the method). NVFP4 weights, bf16 x, out f32 or bf16; whole multiples of 64 inputs and 4 outputs.
//
// matmul_sm90_ROWS: one block computes 128 outputs by ROWS rows; blockIdx.x = outputs, y = rows.
#include "common_linear.cuh"
#include "common_sm90.cuh"

template <int ROWS>
__device__ inline void wide(const Linear& p) {
    using W = Wide<ROWS, 5>;
    extern __shared__ __align__(1024) char memory[];
    u32 first = blockIdx.x * W::OUTPUTS, base = blockIdx.y * ROWS;
    float sums[ROWS / 8][4] = {};
    auto source = [&](u32 row) { return u64(min(base + row, p.rows - 1)); };
    W::run(p.w, 0, first, p.x, source, shared_address(memory), sums);
    float factor = p.w.scale[0] * FACTOR<W_NVFP4>;
    W::finish(first, factor, sums, reinterpret_cast<float*>(memory), [&](u32 output, u32 row, float4 v) {
        if (output >= p.w.rows || base + row >= p.rows) return;
        if (p.bias) {
            const float* bias = p.bias + output;
            v = make_float4(v.x + bias[0], v.y + bias[1], v.z + bias[2], v.w + bias[3]);
        }
        store_four(p.out, base + row, output, v, p.how);
    });
}

extern "C" __global__ void __launch_bounds__(256, 2) matmul_sm90_128(__grid_constant__ const Linear p) { wide<128>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) matmul_sm90_256(__grid_constant__ const Linear p) { wide<256>(p); }
