// A weight as bf16, for products of so many rows that a dense product of the whole matrix pays for it (matmul_many.rs).
//
// Every value times its block scale is exact in bf16; NVFP4 comes out smaller by 2^8 (common_mma.cuh), and the scale of
// the whole matrix is left to the product. One thread converts 8 columns, in the order in which the weight lies.
#include "common_mma.cuh"

// The row and block whose place in the first matrix it is.
__device__ inline void place_of(const Bank& w, u32 place, u32& row, u32& block) {
    u32 blocks = w.cols / 16, first = place / (STRIPE * blocks) * STRIPE, height = min(STRIPE, w.rows - first);
    u32 inside = place - first * blocks, chunk = inside / (CHUNK * height) * CHUNK, width = min(CHUNK, blocks - chunk);
    inside -= chunk * height;
    row = first + inside / width, block = chunk + inside % width;
}

extern "C" __global__ void matmul_dequantise_nvfp4(const __grid_constant__ Bank w, uint4* out /* [rows, cols / 8] */) {
    u32 words = w.cols / 8, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i / words >= w.rows) return;
    u32 row, block, word = reinterpret_cast<const u32*>(w.data)[i];
    place_of(w, i / 2, row, block);
    uint4 v;
    dequantise<W_NVFP4>(&word, block_scale(w.scales[i / 2]), &v.x);
    out[u64(row) * words + block * 2 + i % 2] = v;
}

extern "C" __global__ void matmul_dequantise_fp8(const __grid_constant__ Bank w, uint4* out) {
    u32 words = w.cols / 8, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i / words >= w.rows) return;
    uint2 word = reinterpret_cast<const uint2*>(w.data)[i], copy = word;
    uint4 v;
    dequantise<W_FP8>(&copy.x, 0, &v.x);
    out[i] = v;
}
