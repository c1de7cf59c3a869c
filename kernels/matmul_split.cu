// out = x weight^T + bias, or out += scale * (x weight^T + bias), for f32 weights and many rows of bf16 x.
//
// An f32 is the sum of three bf16, so three exact products a pair give the f32 product: only the order of summing
// differs from the plain form (routers choose experts by these sums). Operands as in matmul.cu; whole 16-byte pieces.
//
// One block of 8 warps computes 128 outputs by 32 rows, 32 columns a stage, later stages on their way. blockIdx.x =
// outputs, y = rows. In a run of 16 columns lane (g, t) takes columns 4t .. 4t + 3 of both operands.
#include "common_mma.cuh"

constexpr int OUTPUTS = 128, ROWS = 32, COLS = 32, STAGES = 4, THREADS = 256;
// Bytes of a row: neighbouring rows begin half the banks (weights) and a quarter (x) apart.
constexpr int W_PITCH = COLS * 4 + 64, X_PITCH = COLS * 2 + 32, STAGE = OUTPUTS * W_PITCH + ROWS * X_PITCH;

// The three parts of two values, as fragments' registers.
__device__ inline void split_three(float low, float high, u32* parts) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
        parts[i] = f32_bf16x2(low, high);
        low -= bits_f32(parts[i] << 16);
        high -= bits_f32(parts[i] & 0xffff0000u);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) matmul_split(Window x, Bank w, const float* bias, Store how,
                                                                   Window out, u32 rows) {
    extern __shared__ uint4 pieces[];
    char* memory = reinterpret_cast<char*>(pieces);
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    u32 first = blockIdx.x * OUTPUTS, base = blockIdx.y * ROWS, steps = (w.cols + COLS - 1) / COLS;
    auto fetch = [&](u32 step) {
        u32 to = shared_address(memory) + step % STAGES * STAGE;
        for (u32 i = threadIdx.x; i < OUTPUTS * COLS / 4; i += THREADS) {
            u32 output = min(first + i / (COLS / 4), w.rows - 1), col = step * COLS + i % (COLS / 4) * 4;
            bool there = col < w.cols;
            copy_async(to + i / (COLS / 4) * W_PITCH + i % (COLS / 4) * 16, w.data + (there ? (u64(output) * w.cols + col) * 4 : 0),
                       there ? 16 : 0);
        }
        if (threadIdx.x < ROWS * COLS / 8) {
            u32 row = threadIdx.x / (COLS / 8), piece = threadIdx.x % (COLS / 8), col = step * COLS + piece * 8;
            bool there = base + row < rows && col < w.cols;
            copy_async(to + OUTPUTS * W_PITCH + row * X_PITCH + piece * 16,
                       x.data + (there ? ((base + row) * x.stride + col) * 2 : 0), there ? 16 : 0);
        }
    };
    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) fetch(stage);
        copy_commit();
    }
    float sums[ROWS / 8][4] = {};
    for (u32 step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) fetch(step + STAGES - 1);
        copy_commit();
        const char* stage = memory + step % STAGES * STAGE;
        // Tensor cores cut sums off where f32 rounds: short chains, added up in f32, keep that small.
        float chain[ROWS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < COLS / 16; k++) {
            u32 parts[4][3];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float4 v = *reinterpret_cast<const float4*>(stage + (16 * warp + g + 8 * r) * W_PITCH + k * 64 + t * 16);
                split_three(v.x, v.y, parts[r]);
                split_three(v.z, v.w, parts[2 + r]);
            }
            uint2 b[ROWS / 8];
#pragma unroll
            for (int j = 0; j < ROWS / 8; j++) {
                b[j] = *reinterpret_cast<const uint2*>(stage + OUTPUTS * W_PITCH + (8 * j + g) * X_PITCH + k * 32 + t * 8);
            }
#pragma unroll
            for (int part = 2; part >= 0; part--) {
                u32 a[4] = {parts[0][part], parts[1][part], parts[2][part], parts[3][part]};
#pragma unroll
                for (int j = 0; j < ROWS / 8; j++) mma(chain[j], a, b[j].x, b[j].y);
            }
        }
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) sums[j][e] += chain[j][e];
        }
    }
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 output = first + 16 * warp + g + e / 2 * 8, row = base + 8 * j + 2 * t + e % 2;
            if (output < w.rows && row < rows) store(out, row, output, sums[j][e] + (bias ? bias[output] : 0.0f), how);
        }
    }
}
