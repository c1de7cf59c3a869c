// out[row * top_k + choice] = f(x[input row] weight[ids[row, choice]]^T), sums in f32.
//
// x [rows or rows * top_k, inputs], weight [experts, outputs, inputs] of any format, ids [rows, top_k] u32,
// order [pairs] and offsets [experts + 1] as moe_group sorts them, out [pairs, outputs].
//
// moe_matmul_plain: any dtypes and formats; one warp computes one output of one pair (blockIdx.y = pair).
// moe_matmul_vec: bf16 x, few pairs; one block computes 16 outputs of one pair, the expert looked up on the device.
// moe_matmul_tile: bf16 x, sorted pairs; one block computes 128 outputs by ROWS pairs of one expert. blockIdx.y counts
// tiles over all experts; there are at most pairs / ROWS + experts, and blocks past the last do nothing.
#include "common_mma.cuh"
#include "common_moe.cuh"

__device__ inline u32 expert_of(const Moe& p, u32 pair) {
    u32 top_k = p.ids.cols;
    return reinterpret_cast<const u32*>(p.ids.data)[pair / top_k * p.ids.stride + pair % top_k];
}

__device__ inline u32 input_row(const Moe& p, u32 pair) { return p.by_pair ? pair : pair / p.ids.cols; }

extern "C" __global__ void moe_matmul_plain(Moe p) {
    u32 lane = threadIdx.x % 32, output = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (output >= p.w.rows) return;
    for (u32 pair = blockIdx.y; pair < p.pairs; pair += gridDim.y) {
        u32 expert = expert_of(p, pair), row = input_row(p, pair);
        float sum = 0.0f;
        for (u32 col = lane; col < p.w.cols; col += 32) {
            sum += weight_at(p.w, expert, output, col) * load(p.x, row, col);
        }
        sum = warp_sum(sum);
        if (lane == 0) store(p.out, pair, output, apply(p.function, sum));
    }
}

template <int FORMAT>
__device__ inline void vec(const Moe& p) {
    extern __shared__ float memory[];
    u32 first = blockIdx.x * 16, pair = blockIdx.y, expert = expert_of(p, pair);
    Rows view = {reinterpret_cast<const u16*>(p.x.data) + input_row(p, pair) * p.x.stride, p.x.stride, 1};
    product_vec<FORMAT, 1>(p.w, expert, first, view, memory);
    finish_vec<1>(first, p.w.rows, 1, p.w.scale[expert] * FACTOR<FORMAT>, memory, [&](u32 output, u32, float v) {
        store(p.out, pair, output, apply_rare(p.function, v));
    });
}

// The expert whose tiles hold tile number `number`, and its tile: the first warp walks the experts 32 at a time.
template <int ROWS>
__device__ inline void find_tile(const Moe& p, u32 number, u32* found) {
    u32 lane = threadIdx.x;
    if (lane == 0) found[0] = PADDING;
    __syncwarp();
    u32 before = 0;
    for (u32 base = 0; base < p.w.experts && before <= number; base += 32) {
        u32 expert = base + lane, tiles = 0;
        if (expert < p.w.experts) tiles = (p.offsets[expert + 1] - p.offsets[expert] + ROWS - 1) / ROWS;
        u32 through = tiles;
        for (u32 step = 1; step < 32; step *= 2) {
            u32 other = __shfl_up_sync(ALL, through, step);
            if (lane >= step) through += other;
        }
        u32 start = before + through - tiles;
        if (number >= start && number < start + tiles) {
            found[0] = expert;
            found[1] = number - start;
        }
        before += __shfl_sync(ALL, through, 31);
    }
}

template <class T, int FORMAT, int MT, int NT>
__device__ inline void tile(const Moe& p) {
    extern __shared__ uint4 pieces[];
    __shared__ u32 sources[T::ROWS], pairs[T::ROWS], found[2];
    if (threadIdx.x < 32) find_tile<T::ROWS>(p, blockIdx.y, found);
    __syncthreads();
    u32 expert = found[0];
    if (expert == PADDING) return;
    u32 start = p.offsets[expert] + found[1] * T::ROWS, end = p.offsets[expert + 1];
    for (u32 i = threadIdx.x; i < T::ROWS; i += T::THREADS) {
        pairs[i] = start + i < end ? p.order[start + i] : PADDING;
        sources[i] = pairs[i] == PADDING ? PADDING : input_row(p, pairs[i]);
    }
    __syncthreads();
    u32 first = blockIdx.x * T::OUTPUTS;
    char* memory = reinterpret_cast<char*>(pieces);
    float sums[MT][NT][4] = {};
    T::run(p.w, expert, first, p.x, sources, memory, sums);
    T::finish(first, p.w.scale[expert] * FACTOR<FORMAT>, sums, memory, [&](u32 output, u32 row, float v) {
        if (output >= p.w.rows || pairs[row] == PADDING) return;
        store(p.out, pairs[row], output, apply_rare(p.function, v));
    });
}

#define TILE(NAME, FORMAT, MT, NT, WM, WN, ROWS)                                                             \
    extern "C" __global__ void __launch_bounds__(32 * WM * WN) moe_matmul_tile_##NAME##_##ROWS(Moe p) {      \
        tile<Tile<FORMAT, MT, NT, WM, WN>, FORMAT, MT, NT>(p);                                               \
    }
#define FORMS(NAME, FORMAT)                                                                                  \
    extern "C" __global__ void __launch_bounds__(512) moe_matmul_vec_##NAME(Moe p) { vec<FORMAT>(p); }       \
    TILE(NAME, FORMAT, 2, 2, 4, 1, 16)                                                                       \
    TILE(NAME, FORMAT, 2, 8, 4, 1, 64)                                                                       \
    TILE(NAME, FORMAT, 4, 8, 2, 2, 128)
FORMS(bf16, W_BF16)
FORMS(fp8, W_FP8)
FORMS(nvfp4, W_NVFP4)
