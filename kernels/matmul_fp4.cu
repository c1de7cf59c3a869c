// Operands of products in block-scaled FP4, for those who ask for them (matmul_fp4.rs): numbers change.
//
// matmul_fp4_units: `units` [rows] gets the f32 scale of each row of x, with which its largest block scale is E4M3's largest.
// One block a row.
// matmul_fp4_one_unit: one scale for all rows instead, the power of two at or above the largest of `units`, so that what else
// is in the batch changes the rounding of no block but those 2^14 below the largest; `factors` [2] gets alpha and beta of the
// product. One block.
// matmul_fp4_rows_line, matmul_fp4_rows_tile: x [rows, cols] bf16 -> codes by row, in the order that weights have in 8 columns (common_load.cu), and
// block scales, a block's largest value over 6 in its row's units, rounded to E4M3: by row, or in cuBLASLt's order (tile_place),
// where rows up to a multiple of 128 get scales of zero. One block a row, multiples of 64 columns.
// matmul_fp4_weight: a weight's block scales in cuBLASLt's order, its codes by row. A thread moves four blocks.
//
// Both operands of a product have their columns in the same order within 8, which no sum over columns notices.
#include "common.cuh"

// Where cuBLASLt reads the scale of a block of 16 columns: tiles of 128 rows by 4 blocks, in them 32 groups of the four rows that
// lie 32 apart, each with its four blocks. Twin of `tile_place` in matmul_fp4.rs.
constexpr u32 TILE = 128;
__device__ inline u64 tile_place(u32 row, u32 block, u32 blocks) {
    u64 tile = u64(row / TILE) * ((blocks + 3) / 4) + block / 4;
    return tile * (4 * TILE) + row % 32 * 16 + row % TILE / 32 * 4 + block % 4;
}

// The nearest E2M1 code, of two equally near ones the even one; beyond 6 it is 6.
__device__ inline u32 e2m1_code(float v) {
    float a = fabsf(v);
    u32 code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return code | (v < 0.0f ? 8 : 0);
}

extern "C" __global__ void matmul_fp4_units(Window x, float* units /* [rows] */) {
    __shared__ u32 scratch[32];
    float largest = 0.0f;
    for (u32 col = threadIdx.x; col < x.cols; col += blockDim.x) largest = most(largest, fabsf(load(x, blockIdx.x, col)));
    largest = block_most(largest, scratch);
    if (threadIdx.x == 0) units[blockIdx.x] = largest / (6.0f * 448.0f);
}

extern "C" __global__ void matmul_fp4_one_unit(float* units /* [rows] */, u32 rows, float alpha, float beta, float* factors) {
    __shared__ u32 scratch[32];
    float largest = 0.0f;
    // A row that is not finite spoils itself only.
    for (u32 row = threadIdx.x; row < rows; row += blockDim.x) {
        if (units[row] < INFINITE) largest = fmaxf(largest, units[row]);
    }
    u32 bits = __float_as_uint(block_most(largest, scratch));
    float unit = bits_f32((bits + 0x7fffff) & 0xff800000u);
    for (u32 row = threadIdx.x; row < rows; row += blockDim.x) units[row] = unit;
    if (threadIdx.x == 0) {
        factors[0] = alpha * unit;
        factors[1] = beta;
    }
}

template <bool TILES>
__device__ inline void round_row(const Window& x, u32 rows, const float* units, u32* codes, u8* blocks) {
    u32 row = blockIdx.x, count = x.cols / 16;
    for (u32 block = threadIdx.x; block < count; block += blockDim.x) {
        u8& scale = blocks[TILES ? tile_place(row, block, count) : u64(row) * count + block];
        if (row >= rows) {
            scale = 0;
            continue;
        }
        float v[16], largest = 0.0f, unit = units[row];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            v[i] = load(x, row, block * 16 + i);
            largest = most(largest, fabsf(v[i]));
        }
        // NaN stays: in the scale.
        scale = unit != 0.0f ? f32_e4m3(largest / (6.0f * unit)) : 0;
        float step = e4m3_f32(scale) * unit, factor = step > 0.0f ? 1.0f / step : 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 word = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) word |= e2m1_code(v[half * 8 + i] * factor) << (i / 2 * 4 + i % 2 * 16);
            codes[(u64(row) * count + block) * 2 + half] = word;
        }
    }
}

extern "C" __global__ void matmul_fp4_rows_line(Window x, u32 rows, const float* units, u32* codes, u8* blocks) {
    round_row<false>(x, rows, units, codes, blocks);
}

extern "C" __global__ void matmul_fp4_rows_tile(Window x, u32 rows, const float* units, u32* codes, u8* blocks) {
    round_row<true>(x, rows, units, codes, blocks);
}

extern "C" __global__ void matmul_fp4_weight(const __grid_constant__ Bank w, uint4* codes /* [rows, cols / 32] */, u8* blocks) {
    u32 count = w.cols / 16, padded = (w.rows + TILE - 1) / TILE * TILE;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x, row = i % padded, block = i / padded * 4;
    if (block >= count) return;
    u64 place = row < w.rows ? scale_place(w, 0, row, block) : 0;
    u32 four = row < w.rows ? *reinterpret_cast<const u32*>(w.scales + place) : 0;
    for (u32 half = 0; half < 2 && row < w.rows; half++) {
        codes[(u64(row) * count + block) / 2 + half] = reinterpret_cast<const uint4*>(w.data)[place / 2 + half];
    }
    *reinterpret_cast<u32*>(blocks + tile_place(row, block, count)) = four;
}
