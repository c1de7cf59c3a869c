// out = x weight^T + bias, or out += scale * (x weight^T + bias), sums in f32.
//
// x [rows, inputs], weight [outputs, inputs] of any format, bias [outputs] f32 or null, out [rows, outputs].
//
// matmul_plain: any dtypes and formats; one warp computes one output for up to 4 rows, lanes over the columns.
// matmul_vec_FORMAT: bf16 x, more rows than matmul_vec.cu takes; one block computes 16 outputs by 8 * NT rows
// (common_mma.cuh).
// matmul_tile: bf16 x, many rows; one block computes 128 outputs by ROWS rows.
// The latter two take BF16, FP8 and NVFP4 with whole 16-byte pieces in a row.
#include "common_mma.cuh"

constexpr u32 PLAIN_ROWS = 4;

extern "C" __global__ void matmul_plain(Window x, Bank w, const float* bias, Store how, Window out, u32 rows) {
    u32 lane = threadIdx.x % 32, output = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (output >= w.rows) return;
    for (u32 first = blockIdx.y * PLAIN_ROWS; first < rows; first += gridDim.y * PLAIN_ROWS) {
        float sums[PLAIN_ROWS] = {};
        for (u32 col = lane; col < w.cols; col += 32) {
            float v = weight_at(w, 0, output, col);
#pragma unroll
            for (u32 r = 0; r < PLAIN_ROWS; r++) {
                if (first + r < rows) sums[r] += v * load(x, first + r, col);
            }
        }
#pragma unroll
        for (u32 r = 0; r < PLAIN_ROWS; r++) {
            float sum = warp_sum(sums[r]) + (bias ? bias[output] : 0.0f);
            if (lane == 0 && first + r < rows) store(out, first + r, output, sum, how);
        }
    }
}

template <int FORMAT, int NT>
__device__ inline void vec(const Window& x, const Bank& w, const float* bias, const Store& how, const Window& out,
                           u32 rows) {
    extern __shared__ float memory[];
    u32 first = blockIdx.x * 16;
    u32 base = blockIdx.y * 8 * NT, count = min(8 * NT, rows - base);
    Rows view = {reinterpret_cast<const u16*>(x.data) + base * x.stride, x.stride, count};
    product_vec<FORMAT, NT>(w, 0, first, view, memory);
    finish_vec<NT>(first, w.rows, count, w.scale[0] * FACTOR<FORMAT>, memory, [&](u32 output, u32 row, float v) {
        store(out, base + row, output, v + (bias ? bias[output] : 0.0f), how);
    });
}

template <class T, int FORMAT, int MT, int NT>
__device__ inline void tile(const Window& x, const Bank& w, const float* bias, const Store& how, const Window& out,
                            u32 rows) {
    extern __shared__ uint4 pieces[];
    __shared__ u32 sources[T::ROWS];
    u32 first = blockIdx.x * T::OUTPUTS, base = blockIdx.y * T::ROWS;
    for (u32 i = threadIdx.x; i < T::ROWS; i += T::THREADS) sources[i] = base + i < rows ? base + i : PADDING;
    __syncthreads();
    char* memory = reinterpret_cast<char*>(pieces);
    float sums[MT][NT][4] = {};
    T::run(w, 0, first, x, sources, memory, sums);
    T::finish(first, w.scale[0] * FACTOR<FORMAT>, sums, memory, [&](u32 output, u32 row, float v) {
        if (output >= w.rows || base + row >= rows) return;
        store(out, base + row, output, v + (bias ? bias[output] : 0.0f), how);
    });
}

#define VEC(NAME, FORMAT, NT)                                                                               \
    extern "C" __global__ void __launch_bounds__(512) matmul_vec_##NAME##_##NT(                              \
        Window x, Bank w, const float* bias, Store how, Window out, u32 rows) {                             \
        vec<FORMAT, NT>(x, w, bias, how, out, rows);                                                        \
    }
#define TILE(NAME, FORMAT, MT, NT, WM, WN, ROWS)                                                            \
    extern "C" __global__ void __launch_bounds__(32 * WM * WN) matmul_tile_##NAME##_##ROWS(                 \
        Window x, Bank w, const float* bias, Store how, Window out, u32 rows) {                             \
        tile<Tile<FORMAT, MT, NT, WM, WN>, FORMAT, MT, NT>(x, w, bias, how, out, rows);                     \
    }
#define FORMS(NAME, FORMAT)              \
    VEC(NAME, FORMAT, 4)                 \
    TILE(NAME, FORMAT, 2, 8, 4, 1, 64)   \
    TILE(NAME, FORMAT, 4, 8, 2, 2, 128)
FORMS(bf16, W_BF16)
FORMS(fp8, W_FP8)
FORMS(nvfp4, W_NVFP4)
