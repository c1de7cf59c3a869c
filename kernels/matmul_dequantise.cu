// A weight as bf16, for products of so many rows that a dense product of the whole matrix pays for it (matmul_many.rs).
//
// Every value times its block scale is exact in bf16; NVFP4 comes out smaller by 2^8 (common_mma.cuh), and the scale of
// the whole matrix is left to the product. One thread converts 8 columns.
#include "common_mma.cuh"

extern "C" __global__ void matmul_dequantise_nvfp4(const __grid_constant__ Bank w, uint4* out /* [rows, cols / 8] */) {
    u32 words = w.cols / 8, i = blockIdx.x * blockDim.x + threadIdx.x, row = i / words;
    if (row >= w.rows) return;
    u32 word = reinterpret_cast<const u32*>(w.data)[i];
    uint4 v;
    dequantise<W_NVFP4>(&word, block_scale(w.scales[scale_place(w, 0, row, i % words / 2)]), &v.x);
    out[i] = v;
}

extern "C" __global__ void matmul_dequantise_fp8(const __grid_constant__ Bank w, uint4* out) {
    u32 words = w.cols / 8, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i / words >= w.rows) return;
    uint2 word = reinterpret_cast<const uint2*>(w.data)[i], copy = word;
    uint4 v;
    dequantise<W_FP8>(&copy.x, 0, &v.x);
    out[i] = v;
}
