// What the chunked scans (ssm_scan_chunk.cu has the formula) share: a chunk's decays.
#pragma once
#include "common_scan.cuh"

constexpr int Q = 64;  // tokens of a chunk

// What a chunk's tokens are scaled by.
struct Steps {
    float coarse[Q], fine[Q];  // l * log2(e), as a sum of two
    float dt[Q], from_start[Q], to_end[Q];  // dt, e^l, dt e^(l_Q - l)
    float whole, unused[3];
};

// Lane i of one warp holds tokens 2i and 2i + 1.
__device__ inline void make_steps(Steps& to, float dt0, float dt1, float a_log) {
    u32 lane = threadIdx.x % 32;
    double rate = double(a_log) * 1.4426950408889634, first = rate * dt0, second = first + rate * dt1, sum = second;
    for (u32 step = 1; step < 32; step *= 2) {
        double other = __shfl_up_sync(ALL, sum, step);
        if (lane >= step) sum += other;
    }
    double before = sum - second, end = __shfl_sync(ALL, sum, 31);
    double logs[2] = {before + first, sum};
    float dts[2] = {dt0, dt1};
    for (u32 i = 0; i < 2; i++) {
        u32 t = 2 * lane + i;
        to.coarse[t] = float(logs[i]);
        to.fine[t] = float(logs[i] - double(to.coarse[t]));
        to.dt[t] = dts[i];
        to.from_start[t] = power_of_2(float(logs[i]));
        to.to_end[t] = dts[i] * power_of_2(float(end - logs[i]));
    }
    if (lane == 0) to.whole = power_of_2(float(end));
}
