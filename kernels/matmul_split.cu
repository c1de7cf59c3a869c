// out = x weight^T + bias, or out += scale * (x weight^T + bias), for f32 weights and many rows of bf16 x.
//
// An f32 is the sum of three bf16, so three exact products a pair give the f32 product: only the order of summing
// differs from the plain form (routers choose experts by these sums). Operands as in matmul.cu; whole 16-byte pieces.
//
// matmul_split_OUTPUTS_ROWS: one block computes OUTPUTS by ROWS, later stages of columns on their way; each of its warps 16
// outputs by all rows, over one run of 16 columns a stage. A step takes as long however many blocks there are, so few rows are
// shared out over small blocks.
// blockIdx.x = outputs, y = rows. In a run of 16 columns lane (g, t) takes columns 4t .. 4t + 3 of both operands.
#include "common_linear.cuh"
#include "common_mma.cuh"

// The three parts of two values, as fragments' registers.
__device__ inline void split_three(float low, float high, u32* parts) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
        parts[i] = f32_bf16x2(low, high);
        low -= bits_f32(parts[i] << 16);
        high -= bits_f32(parts[i] & 0xffff0000u);
    }
}

template <int OUTPUTS, int ROWS, int COLS, int STAGES>
struct Block {
    static constexpr int WARPS = OUTPUTS / 16, PARTS = COLS / 16, THREADS = 32 * WARPS * PARTS;
    // Bytes of a row: neighbouring rows begin half the banks (weights) and a quarter (x) apart.
    static constexpr int W_PITCH = COLS * 4 + 64, X_PITCH = COLS * 2 + 32, STAGE = OUTPUTS * W_PITCH + ROWS * X_PITCH;
    static_assert((PARTS - 1) * WARPS * 32 * ROWS * 2 <= STAGES * STAGE, "sums of all parts but one fit the stages");

    static __device__ inline void fetch(const Linear& p, u32 to, u32 step) {
        u32 first = blockIdx.x * OUTPUTS, base = blockIdx.y * ROWS;
        for (u32 i = threadIdx.x; i < OUTPUTS * COLS / 4; i += THREADS) {
            u32 output = min(first + i / (COLS / 4), p.w.rows - 1), col = step * COLS + i % (COLS / 4) * 4;
            bool there = col < p.w.cols;
            copy_async(to + i / (COLS / 4) * W_PITCH + i % (COLS / 4) * 16,
                       p.w.data + (there ? (u64(output) * p.w.cols + col) * 4 : 0), there ? 16 : 0);
        }
        for (u32 i = threadIdx.x; i < ROWS * COLS / 8; i += THREADS) {
            u32 row = i / (COLS / 8), piece = i % (COLS / 8), col = step * COLS + piece * 8;
            bool there = base + row < p.rows && col < p.w.cols;
            copy_async(to + OUTPUTS * W_PITCH + row * X_PITCH + piece * 16,
                       p.x.data + (there ? ((base + row) * p.x.stride + col) * 2 : 0), there ? 16 : 0);
        }
    }

    // Adds a run of columns; `w` and `x` are where this lane's lie.
    static __device__ inline void multiply(const char* w, const char* x, float (*sums)[4]) {
        u32 parts[4][3];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float4 v = *reinterpret_cast<const float4*>(w + 8 * r * W_PITCH);
            split_three(v.x, v.y, parts[r]);
            split_three(v.z, v.w, parts[2 + r]);
        }
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
            uint2 b = *reinterpret_cast<const uint2*>(x + 8 * j * X_PITCH);
            // Tensor cores cut sums off where f32 rounds: short chains, added up in f32, keep that small.
            float chain[4] = {};
#pragma unroll
            for (int part = 2; part >= 0; part--) {
                u32 a[4] = {parts[0][part], parts[1][part], parts[2][part], parts[3][part]};
                mma(chain, a, b.x, b.y);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) sums[j][e] += chain[e];
        }
    }

    static __device__ inline void run(const Linear& p) {
        extern __shared__ uint4 pieces[];
        char* memory = reinterpret_cast<char*>(pieces);
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % WARPS;
        u32 part = threadIdx.x / 32 / WARPS, steps = (p.w.cols + COLS - 1) / COLS;
        for (u32 stage = 0; stage < STAGES - 1; stage++) {
            if (stage < steps) fetch(p, shared_address(memory) + stage * STAGE, stage);
            copy_commit();
        }
        float sums[ROWS / 8][4] = {};
        for (u32 step = 0; step < steps; step++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            u32 later = step + STAGES - 1;
            if (later < steps) fetch(p, shared_address(memory) + later % STAGES * STAGE, later);
            copy_commit();
            const char* stage = memory + step % STAGES * STAGE;
            multiply(stage + (16 * warp + g) * W_PITCH + part * 64 + t * 16,
                     stage + OUTPUTS * W_PITCH + g * X_PITCH + part * 32 + t * 8, sums);
        }
        copy_wait<0>();
        __syncthreads();
        float* table = reinterpret_cast<float*>(memory) + warp * 32 + lane;
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) {
            if (part > 0) table[((part - 1) * (ROWS / 2) + i) * WARPS * 32] = sums[i / 4][i % 4];
        }
        __syncthreads();
        if (part > 0) return;
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) {
            float& sum = sums[i / 4][i % 4];
            for (u32 other = 0; other + 1 < PARTS; other++) sum += table[(other * (ROWS / 2) + i) * WARPS * 32];
            u32 output = blockIdx.x * OUTPUTS + 16 * warp + g + i % 4 / 2 * 8, row = blockIdx.y * ROWS + 8 * (i / 4) + 2 * t + i % 2;
            if (output < p.w.rows && row < p.rows) store(p.out, row, output, sum + (p.bias ? p.bias[output] : 0.0f), p.how);
        }
    }
};

extern "C" __global__ void __launch_bounds__(256) matmul_split_16_32(__grid_constant__ const Linear p) {
    Block<16, 32, 128, 5>::run(p);
}
extern "C" __global__ void __launch_bounds__(512) matmul_split_64_64(__grid_constant__ const Linear p) {
    Block<64, 64, 64, 3>::run(p);
}
