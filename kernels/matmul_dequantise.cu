// A weight as bf16, for products of so many rows that a dense product of the whole matrix pays for it (matmul_many.rs).
//
// Every value times its block scale is exact in bf16; NVFP4 comes out smaller by 2^8 (common_mma.cuh), and the scale of
// the whole matrix is left to the product. One thread converts 8 columns.
#include "common_mma.cuh"

extern "C" __global__ void matmul_dequantise_nvfp4(const u32* codes /* [rows, cols / 8] */, const u8* scales,
                                                   uint4* out /* [rows, cols / 8] */, u64 words) {
    u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= words) return;
    u32 word = codes[i];
    uint4 v;
    dequantise<W_NVFP4>(&word, block_scale(scales[i / 2]), &v.x);
    out[i] = v;
}

extern "C" __global__ void matmul_dequantise_fp8(const uint2* codes /* [rows, cols / 8] */, const u8*, uint4* out, u64 words) {
    u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= words) return;
    uint2 word = codes[i], copy = word;
    uint4 v;
    dequantise<W_FP8>(&copy.x, 0, &v.x);
    out[i] = v;
}
