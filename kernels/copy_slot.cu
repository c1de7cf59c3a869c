// state[to] = state[from]: `rows` rows of `width` bytes, `pitch` bytes apart.
//
// from, to: bytes of the first row of each slot. One thread walks pieces of 16 bytes, or single bytes where rows do not
// begin on 16-byte boundaries.
#include "common.cuh"

template <class Piece>
__device__ inline void copy(const char* from, char* to, u64 rows, u64 width, u64 pitch) {
    u64 pieces = width / sizeof(Piece), step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * pieces; i += step) {
        u64 place = i / pieces * pitch + i % pieces * sizeof(Piece);
        *reinterpret_cast<Piece*>(to + place) = *reinterpret_cast<const Piece*>(from + place);
    }
}

extern "C" __global__ void copy_slot_pieces(const char* from, char* to, u64 rows, u64 width, u64 pitch) {
    copy<uint4>(from, to, rows, width, pitch);
}

extern "C" __global__ void copy_slot_bytes(const char* from, char* to, u64 rows, u64 width, u64 pitch) {
    copy<u8>(from, to, rows, width, pitch);
}
