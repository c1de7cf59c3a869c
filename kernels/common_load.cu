// Reorders NVFP4 codes in place once a weight has been uploaded, and moves signs of block scales into the codes.
//
// Stored: byte i of a row holds column 2i in its low nibble. Wanted: of each 8 columns' word, columns 0 2 4 6 in the
// low half and 1 3 5 7 in the high half, so that a shift by 4j and one mask give columns 2j and 2j + 1 in the two
// halves of a register, where the 16-bit formats of the tensor cores want them.
//
// One thread walks blocks of 16 columns `index, index + threads of the grid, ...`.
#include "common.cuh"

extern "C" __global__ void load_nvfp4(u32* codes /* [blocks, 2] */, u8* scales /* [blocks] */, u64 blocks) {
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < blocks; i += step) {
        u8 scale = scales[i];
        if (scale & 0x80) scales[i] = scale & 0x7f;
        for (int w = 0; w < 2; w++) {
            u32 word = codes[2 * i + w], out = scale & 0x80 ? 0x88888888u : 0;
            for (int j = 0; j < 4; j++) {
                out ^= (word >> (8 * j) & 15) << (4 * j);
                out ^= (word >> (8 * j + 4) & 15) << (4 * j + 16);
            }
            codes[2 * i + w] = out;
        }
    }
}
