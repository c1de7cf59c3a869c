// out[r] = scale * table[tokens[r]], in f32.
//
// tokens [rows, 1] u32 with a row stride, table [vocabulary, hidden] of any format, out [rows, hidden] f32.
// One block copies one row.
#include "common.cuh"

extern "C" __global__ void embed(Window tokens, Bank table, float scale, Window out) {
    u32 row = blockIdx.x;
    u32 token = reinterpret_cast<const u32*>(tokens.data)[row * tokens.stride];
    for (u32 col = threadIdx.x; col < out.cols; col += blockDim.x) {
        store(out, row, col, scale * weight_at(table, 0, token, col));
    }
}
