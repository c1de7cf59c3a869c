// out = x weight^T + bias, or out += scale * (x weight^T + bias), for up to NT rows of bf16 (common_nvfp4.cuh).
//
// The operands are those of matmul_vec.cu; weight in NVFP4. A block takes the tiles of OUTPUTS outputs that lie gridDim.x
// apart: 8 where tiles of 16 would leave blocks without.
#include "common_nvfp4_stream.cuh"

// Twin of `Vec` in matmul.rs.
struct Vec {
    Window x;
    Bank w;
    const float* bias;
    Store how;
    Window out;
    u32 rows, groups, splits, unused;
};

template <int OUTPUTS, int NT>
__device__ inline void vec(const Vec& p) {
    extern __shared__ __align__(16) char memory[];
    release_next();
    Tiles<OUTPUTS> tiles(p.w);
    Staging staging = {memory + WARPS * STAGES * STEP, row_pitch<OUTPUTS>(p.w.cols), NT};
    float* data = reinterpret_cast<float*>(staging.bytes + NT * (staging.pitch + staging.pitch / 4));
    Sums<OUTPUTS, NT> sums = {data, tiles.count};
    Feed<OUTPUTS, Tiles<OUTPUTS>> feed(tiles, memory);
    feed.prime();
    sums.clear();
    await_previous();
    const u16* x = reinterpret_cast<const u16*>(p.x.data);
    stage_rows(staging, p.rows, p.w.cols, [&](u32 row) { return x + row * p.x.stride; });
    __syncthreads();
    multiply<OUTPUTS, NT>(feed, staging, sums);
    for (u32 i = threadIdx.x; i < tiles.count * NT * OUTPUTS; i += THREADS) {
        u32 place = i % (tiles.count * OUTPUTS), row = i / (tiles.count * OUTPUTS);
        u32 output = tiles.output(place / OUTPUTS) + place % OUTPUTS;
        if (row >= p.rows || output >= p.w.rows) continue;
        float v = sums.joined(place / OUTPUTS, row, place % OUTPUTS) * (p.w.scale[0] * FACTOR);
        store(p.out, row, output, v + (p.bias ? p.bias[output] : 0.0f), p.how);
    }
}

#define FORM(OUTPUTS, NT, BLOCKS)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) matmul_nvfp4_##OUTPUTS##_##NT(                     \
        const __grid_constant__ Vec p) {                                                                     \
        vec<OUTPUTS, NT>(p);                                                                                 \
    }
FORM(16, 1, 2)
FORM(16, 2, 1)
FORM(16, 4, 1)
FORM(16, 8, 1)
FORM(8, 1, 2)
FORM(8, 2, 1)
FORM(8, 4, 1)
FORM(8, 8, 1)
