// Chooses each row's experts and runs their first product: out[row * top_k + choice] = f(x[row] weight[choice]^T).
//
// The operands are those of moe_up.cu; weight in NVFP4 (common_nvfp4.cuh). blockIdx.y = pair; a block takes the tiles of 16
// outputs of its expert that lie gridDim.x apart. The first block of a row writes its ids and weights, before it lets the
// next kernel start.
#include "common_choice.cuh"
#include "common_nvfp4_stream.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) moe_up_nvfp4(const __grid_constant__ MoeUp p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ Choice found;
    u32 row = blockIdx.y / p.rule.top_k, choice = blockIdx.y % p.rule.top_k;
    Staging staging = {memory + WARPS * STAGES * STEP, row_pitch<16>(p.w.cols), 1};
    Tiles<16> tiles(p.w, 0);
    Sums<16, 1> sums = {reinterpret_cast<float*>(staging.bytes + staging.pitch + staging.pitch / 4), tiles.count};
    sums.clear();
    await_previous();
    choose(p, row, found);
    tiles.expert = found.ids[choice];
    Feed<16, Tiles<16>> feed(tiles, memory);
    feed.prime();
    if (choice == 0 && blockIdx.x == 0 && threadIdx.x < 32) {
        write_choice(p, row, found);
        __threadfence();
    }
    release_next();
    const u16* x = reinterpret_cast<const u16*>(p.x.data) + row * p.x.stride;
    stage_rows(staging, 1, p.w.cols, [&](u32) { return x; });
    __syncthreads();
    multiply<16, 1>(feed, staging, sums);
    u32 output = tiles.output(threadIdx.x / 16) + threadIdx.x % 16;
    if (threadIdx.x >= tiles.count * 16 || output >= p.w.rows) return;
    float v = sums.joined(threadIdx.x / 16, 0, threadIdx.x % 16) * (p.w.scale[tiles.expert] * FACTOR);
    store(p.out, blockIdx.y, output, apply_rare(p.function, v));
}
