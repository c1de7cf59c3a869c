// out[r] = scale * table[tokens[r]], in f32.
//
// tokens [rows, 1] u32 with a row stride, table [vocabulary, hidden] of any format, out [rows, hidden] f32.
// One block copies one row.
#include "common.cuh"

extern "C" __global__ void embed(Window tokens, Bank table, float scale, Window out) {
    u32 row = blockIdx.x;
    // A choice that failed leaves no token, and a step that was queued by then runs all the same.
    u32 token = min(reinterpret_cast<const u32*>(tokens.data)[row * tokens.stride], table.rows - 1);
    for (u32 col = threadIdx.x; col < out.cols; col += blockDim.x) {
        store(out, row, col, scale * weight_at(table, 0, token, col));
    }
}
