// out = x weight^T + bias, or out += scale * (x weight^T + bias), with block-scaled FP4 products (matmul.cu has the operands).
// For those who ask for it (matmul_fp4.rs), since x is rounded to NVFP4 too. Only sm_120a has the instruction; no device of
// that kind has run this yet.
//
// matmul_fp4: NVFP4 weight and rows of matmul_fp4_rows_line (matmul_fp4.cu), whole multiples of 64 columns; one block of four
// warps computes 128 outputs by 64 rows, 64 columns a step, copied ahead. blockIdx.x = outputs, y = rows. Sums are f32.
#include "common_mma.cuh"

// Twin of `Linear` in matmul_fp4.rs.
struct Linear {
    const u32* codes;    // [rows, cols / 8]
    const u8* blocks;    // [rows, cols / 16]
    const float* units;  // [rows]
    Bank w;
    const float* bias;
    Store how;
    Window out;
    u32 rows, unused;
};

// d += a b over 64 columns, four block scales a row of either; a lane's scales of a are those of row lane / 4 or, where its
// number is odd, 8 on.
__device__ inline void mma_scaled(float* d, const u32* a, const u32* b, u32 a_scales, u32 b_scales) {
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {0,0}, {%11}, {0,0};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scales), "r"(b_scales));
}

constexpr int OUTPUTS = 128, ROWS = 64, STAGES = 4;
// Bytes from one line of codes to the next: eight lines lie in different banks. Scales follow the codes.
constexpr int PITCH = 48, LINES = OUTPUTS + ROWS, STAGE = LINES * (PITCH + 4);

__device__ inline void copy_word(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// Not inlined: 64 copies would take the compiler longer than everything else.
__device__ __noinline__ void finish(const Linear& p, u32 row, u32 output, float v) {
    v *= p.w.scale[0] * p.units[row];
    store(p.out, row, output, p.bias ? v + p.bias[output] : v, p.how);
}

extern "C" __global__ void __launch_bounds__(128) matmul_fp4(__grid_constant__ const Linear p) {
    __shared__ __align__(16) char memory[STAGES * STAGE];
    u32 first = blockIdx.x * OUTPUTS, base = blockIdx.y * ROWS, steps = p.w.cols / 64, cols = p.w.cols;
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    auto fetch = [&](u32 step) {
        u32 to = shared_address(memory) + step % STAGES * STAGE;
        for (u32 i = threadIdx.x; i < LINES * 2; i += 128) {
            u32 line = i / 2, half = i % 2;
            bool weight = line < OUTPUTS;
            u64 row = weight ? min(first + line, p.w.rows - 1) : min(base + line - OUTPUTS, p.rows - 1);
            const char* codes = weight ? reinterpret_cast<const char*>(p.w.data) : reinterpret_cast<const char*>(p.codes);
            u64 place = weight ? code_place(p.w, 0, row, step * 4 + half * 2) : row * (cols / 2) + step * 32 + half * 16;
            copy_async(to + line * PITCH + half * 16, codes + place, 16);
            const u8* blocks = weight ? p.w.scales + scale_place(p.w, 0, row, step * 4) : p.blocks + row * (cols / 16) + step * 4;
            if (half == 0) copy_word(to + LINES * PITCH + line * 4, blocks);
        }
    };
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) fetch(stage);
        copy_commit();
    }
    float sums[2][8][4] = {};
    for (u32 step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) fetch(step + STAGES - 1);
        copy_commit();
        const char* stage = memory + step % STAGES * STAGE;
        auto word = [&](u32 line, u32 i) { return *reinterpret_cast<const u32*>(stage + line * PITCH + i * 4); };
        auto scales = [&](u32 line) { return *reinterpret_cast<const u32*>(stage + LINES * PITCH + line * 4); };
        u32 a[2][4], a_scales[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            u32 line = warp * 32 + 16 * m + g;
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i] = word(line + i % 2 * 8, t + i / 2 * 4);
            a_scales[m] = scales(line + lane % 2 * 8);
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            u32 line = OUTPUTS + 8 * n + g, b[2] = {word(line, t), word(line, t + 4)}, b_scales = scales(line);
#pragma unroll
            for (int m = 0; m < 2; m++) mma_scaled(sums[m][n], a[m], b, a_scales[m], b_scales);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u32 output = first + warp * 32 + 16 * m + g + e / 2 * 8, row = base + 8 * n + 2 * t + e % 2;
                if (output < p.w.rows && row < p.rows) finish(p, row, output, sums[m][n][e]);
            }
        }
    }
}
