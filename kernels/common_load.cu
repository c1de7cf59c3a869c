// Brings an NVFP4 weight into the order the kernels read, in place, once it has been uploaded.
//
// Codes. Stored: byte i of a row holds column 2i in its low nibble. Wanted: of each 8 columns' word, columns 0 2 4 6 in
// the low half and 1 3 5 7 in the high half, so that a shift by 4j and one mask give columns 2j and 2j + 1 in the two
// halves of a register, where the 16-bit formats of the tensor cores want them.
//
// Block scales. Stored: by row. Wanted: the order of `scale_place` (common.cuh), and no sign: that goes into the codes.
//
// A block takes a stripe of 16 rows of one matrix; its scales, as stored, lie in `stripe` [16 * cols / 16] meanwhile.
#include "common.cuh"

extern "C" __global__ void load_nvfp4(const __grid_constant__ Bank w) {
    extern __shared__ u8 stripe[];
    u32 blocks = w.cols / 16, stripes = (w.rows + STRIPE - 1) / STRIPE;
    u32 first = blockIdx.x % stripes * STRIPE, height = min(STRIPE, w.rows - first);
    u64 matrix = u64(blockIdx.x / stripes) * w.rows, start = (matrix + first) * blocks;
    u8* scales = const_cast<u8*>(w.scales);
    u32* codes = reinterpret_cast<u32*>(const_cast<u8*>(w.data));
    for (u32 i = threadIdx.x; i < height * blocks; i += blockDim.x) stripe[i] = scales[start + i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < height * blocks; i += blockDim.x) {
        scales[scale_place(w, matrix, first + i / blocks, i % blocks)] = stripe[i] & 0x7f;
        for (u32 half = 0; half < 2; half++) {
            u32* at = codes + 2 * (start + i) + half;
            u32 word = *at, out = stripe[i] & 0x80 ? 0x88888888u : 0;
            for (int j = 0; j < 4; j++) {
                out ^= (word >> (8 * j) & 15) << (4 * j);
                out ^= (word >> (8 * j + 4) & 15) << (4 * j + 16);
            }
            *at = out;
        }
    }
}
