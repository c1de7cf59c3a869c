// out[row] (+)= sum over choices of weights[row, choice] * (x[row * top_k + choice] weight[ids[row, choice]]^T), and the
// shared expert's second product: out[row] += scale * (shared_x[row] shared^T).
//
// x [rows * top_k, inputs] bf16, weight [experts, outputs, inputs] and shared [outputs, inputs] in BF16, FP8 or NVFP4,
// ids [rows, top_k] u32, weights [rows, top_k] f32, out [rows, outputs].
//
// One block computes 8 outputs of one row (blockIdx.x = tile, blockIdx.y = row). A warp takes every second step
// of an expert, or every `parts`-th of the shared one; the warps' sums are joined in order. Activations go straight to registers: no two
// warps of a block read the same.
#include "common_vec.cuh"

// Twin of `MoeDown` in moe_down.rs.
struct MoeDown {
    Window x;
    Bank w;
    Window ids, weights, shared_x;
    Bank shared;
    Store how;
    Window out;
    u32 parts, unused;  // warps' worth of the shared expert, 0 where there is none
};

constexpr u32 WARPS = 16, SHARES = 2;  // warps of a block, and of them that share one expert's steps

// One weight's product with one row, its steps dealt in strides.
template <int FORMAT>
__device__ inline float unit(const Bank& w, u32 expert, const u16* x, u32 first, u32 stride, char* ring) {
    u32 lane = threadIdx.x % 32, next = first;
    float sums[1][4] = {};
    Stream<FORMAT> stream(w, expert, ring);
    stream.open(blockIdx.x * 8);
    auto copy_next = [&]() {
        stream.copy(next, column<FORMAT>(next) < w.cols);
        next += stride;
    };
    for (u32 i = 0; i + 1 < STAGES; i++) copy_next();
    await_previous();
    x += lane * COLUMNS<FORMAT>;
    keep(x);
    u32 pieces = lane < 8 && w.cols / COLUMNS<FORMAT> > lane ? w.cols / COLUMNS<FORMAT> - lane : 0;
    keep(pieces);
    for (u32 step = first; column<FORMAT>(step) < w.cols; step += stride) {
        uint4 weights[2], rows[PARTS<FORMAT>];
        u32 blocks[2] = {};
#pragma unroll
        for (u32 part = 0; part < PARTS<FORMAT>; part++) {
            rows[part] = make_uint4(0, 0, 0, 0);
            if (step * 8 >= pieces) continue;
            rows[part] = *reinterpret_cast<const uint4*>(x + column<FORMAT>(step) + part * 8);
        }
        stream.take(weights, blocks);
        copy_next();
        multiply<FORMAT, 1>(weights, blocks, sums, [&](u32 part, u32) { return rows[part]; });
    }
    copy_wait<0>();
    __syncwarp();
    return (sums[0][0] + sums[0][3]) * (w.scale[expert] * FACTOR<FORMAT>);
}

__device__ inline float unit_any(const Bank& w, u32 expert, const u16* x, u32 first, u32 stride, char* ring) {
    if (w.format == W_NVFP4) return unit<W_NVFP4>(w, expert, x, first, stride, ring);
    if (w.format == W_BF16) return unit<W_BF16>(w, expert, x, first, stride, ring);
    return unit<W_FP8>(w, expert, x, first, stride, ring);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) moe_down(const __grid_constant__ MoeDown p) {
    extern __shared__ uint4 memory[];
    __shared__ float partial[2][WARPS][8];
    char* ring = reinterpret_cast<char*>(memory);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y, top_k = p.ids.cols;
    release_next();
    float routed = 0.0f, shared = 0.0f;
    // The last warps take the shared expert, whose weight needs no choice.
    for (u32 part = WARPS - 1 - warp; part < p.parts; part += WARPS) {
        const u16* x = reinterpret_cast<const u16*>(p.shared_x.data) + row * p.shared_x.stride;
        shared += unit_any(p.shared, 0, x, part, p.parts, ring);
    }
    await_previous();
    for (u32 share = warp; share < SHARES * top_k; share += WARPS) {
        u32 choice = share / SHARES;
        u32 expert = reinterpret_cast<const u32*>(p.ids.data)[row * p.ids.stride + choice];
        float weight = reinterpret_cast<const float*>(p.weights.data)[row * p.weights.stride + choice];
        const u16* x = reinterpret_cast<const u16*>(p.x.data) + (u64(row) * top_k + choice) * p.x.stride;
        routed += weight * unit_any(p.w, expert, x, share % SHARES, SHARES, ring);
    }
    if (lane % 4 == 0) {
        partial[0][warp][lane / 4] = routed;
        partial[1][warp][lane / 4] = shared;
    }
    __syncthreads();
    u32 output = blockIdx.x * 8 + threadIdx.x;
    if (threadIdx.x >= 8 || output >= p.w.rows) return;
    routed = shared = 0.0f;
    for (u32 i = 0; i < WARPS; i++) {
        routed += partial[0][i][threadIdx.x];
        shared += partial[1][i][threadIdx.x];
    }
    store(p.out, row, output, routed + shared, p.how);
}
