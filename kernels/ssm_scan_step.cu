// Mamba2's recurrence for segments of one token (the formula is in common_scan_rows.cuh); P = head_dim, N = state.
//
// x, out [rows, heads * P], b, c [rows, groups * N], dt [rows, heads], all f32 or all bf16; params [3, heads] f32: A_log, D,
// dt_bias; state [slots * heads * P, N] f32 or bf16; table [segments]. Everything is computed in f32.
//
// Pure state traffic: a warp takes ROWS rows of one head, a lane four elements of each, all on their way before the kernels
// before this one are done, since only the step before wrote them. One block of 8 warps scans 8 * ROWS rows (blockIdx.x =
// head * tiles + tile, blockIdx.y = segment). Limits: N a multiple of 4, at most 128 * PIECES.
#include "common_scan_step.cuh"

constexpr int ROWS = 4;

template <class A, int PIECES>
__device__ inline void step(const Scan& p) {
    release_next();
    u32 head = blockIdx.x / p.tiles, first = (blockIdx.x % p.tiles * 8 + threadIdx.x / 32) * ROWS;
    Rows<A, ROWS, PIECES> rows = {p, p.table[blockIdx.y], head, first};
    float a_log = -expf(p.params[head]), skip = p.params[p.heads + head], bias = p.params[2 * p.heads + head];
    rows.fetch();
    await_previous();
    if (rows.segment.len > 0) rows.scan(a_log, skip, bias);
}

extern "C" __global__ void __launch_bounds__(256) ssm_scan_step_f32_1(const __grid_constant__ Scan p) { step<float, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) ssm_scan_step_f32_2(const __grid_constant__ Scan p) { step<float, 2>(p); }
extern "C" __global__ void __launch_bounds__(256) ssm_scan_step_bf16_1(const __grid_constant__ Scan p) { step<u16, 1>(p); }
extern "C" __global__ void __launch_bounds__(256) ssm_scan_step_bf16_2(const __grid_constant__ Scan p) { step<u16, 2>(p); }
