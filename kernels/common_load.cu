// Brings an NVFP4 weight into the order the kernels read, in place, once it has been uploaded.
//
// Codes of 8 columns. Stored: byte i of a row holds column 2i in its low nibble. Wanted: columns 0 2 4 6 in the low half
// of a word and 1 3 5 7 in the high half, so that a shift by 4j and one mask give columns 2j and 2j + 1 in the two halves of
// a register, where the 16-bit formats of the tensor cores want them.
//
// Blocks of 16 columns, codes and scales. Stored: by row. Wanted: the order of `scale_place` (common.cuh), and no sign of
// the scale: that goes into the codes.
//
// A block takes a stripe of 16 rows of one matrix, which its threads hold meanwhile. Limit: THREADS * MOST columns.
#include "common.cuh"

constexpr u32 THREADS = 512, MOST = 40;  // blocks of columns of a thread

__device__ inline u32 ordered(u32 word, bool negative) {
    u32 out = negative ? 0x88888888u : 0;
    for (int j = 0; j < 4; j++) {
        out ^= (word >> (8 * j) & 15) << (4 * j);
        out ^= (word >> (8 * j + 4) & 15) << (4 * j + 16);
    }
    return out;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) load_nvfp4(const __grid_constant__ Bank w) {
    u32 blocks = w.cols / 16, stripes = (w.rows + STRIPE - 1) / STRIPE;
    u32 first = blockIdx.x % stripes * STRIPE, count = min(STRIPE, w.rows - first) * blocks;
    u64 matrix = u64(blockIdx.x / stripes) * w.rows, start = (matrix + first) * blocks;
    u8* scales = const_cast<u8*>(w.scales);
    uint2* codes = reinterpret_cast<uint2*>(const_cast<u8*>(w.data));
    uint2 held[MOST];
    u32 signs[MOST / 4];
#pragma unroll
    for (u32 k = 0; k < MOST; k++) {
        u32 i = k * THREADS + threadIdx.x;
        if (k % 4 == 0) signs[k / 4] = 0;
        if (i >= count) continue;
        held[k] = codes[start + i];
        signs[k / 4] |= u32(scales[start + i]) << (k % 4 * 8);
    }
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < MOST; k++) {
        u32 i = k * THREADS + threadIdx.x, scale = signs[k / 4] >> (k % 4 * 8) & 0xff;
        if (i >= count) continue;
        u64 place = scale_place(w, matrix, first + i / blocks, i % blocks);
        codes[place] = make_uint2(ordered(held[k].x, scale & 0x80), ordered(held[k].y, scale & 0x80));
        scales[place] = scale & 0x7f;
    }
}
