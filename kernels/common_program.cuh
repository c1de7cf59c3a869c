// What a program of phases is, as common_program.cu runs it in one launch.
//
// A phase is what one launch would be: a norm with its products, a choice of experts, a scan. All blocks, one a
// multiprocessor, run all phases; where a phase reads what other blocks wrote in one before, they meet first. What a launch
// cannot do is copy the weights of later phases ahead while it still computes: here the ring does not know phases
// (common_program_ring.cuh).
#pragma once
#include "common_conv.cuh"
#include "common_nvfp4.cuh"
#include "common_route.cuh"
#include "common_scan_step.cuh"

// A phase's weights are NVFP4 or BF16. A step is 1024 bytes of 8 outputs, 256 or 64 columns.
constexpr u32 OUTPUTS = 8;
// Eights of columns of a step, as a shift, and staged bytes of x.
__device__ constexpr u32 eights_shift(u32 format) { return format == W_BF16 ? 3 : 5; }
__device__ constexpr u32 span_of(u32 format) { return 16 << eights_shift(format); }

// What products meet: a norm's rows, a gated norm's, rows as they are, or what the last norm staged.
enum Staged { NORM, GATED, ROWS, AGAIN };

enum Kind { PRODUCTS, CHOICE, SCAN };

// Twins of the structs in common_phase.rs. A unit's matrices lie one after the other in `w`.
struct Unit {
    Bank w;
    const float* bias;
    Window out;
    u32 function;
    u32 tiles;   // of one matrix
    u32 end;     // tiles of this unit and those before it
    u32 chosen;  // whether its matrices are those of the last choice
};
struct Products {
    u32 staged, format;
    u32 chained;  // matrices of unit 0 that follow each other along columns, and then unit 1's: their sums add up; 0: matrices
                  // follow each other along outputs
    u32 share, extra;   // tiles of a block; blocks with one more
    u32 length, steps;  // steps of a tile, and of one matrix of unit 0 in it
    u32 x_place, sums_place, extra_place;  // in a block's memory
    u32 plain, keep;  // the place of an F32 unit, 4 for none
    float eps;
    u32 norm_groups, gate_first;
    Store how;
    u32 unused;
    Window x, z, normed;  // z: what gates x, or the row of a chain's unit 1
    const float* gain;
    Conv conv;
    Unit unit[4];
};
struct Choice {
    Window logits;
    const float* bias;
    Window ids, weights;
    Rule rule;
    u32 unused;
};
struct Phase {
    u32 kind;
    u32 meet;    // whether blocks wait first for what all of them wrote before they arrived last
    u32 arrive;  // whether they arrive at its end
    u32 lead;    // phases before this one from which its weights can be told
    union {
        Products products;
        Choice choice;
        Scan scan;
    };
};

// n / d for n below 2^20, in fewer instructions than a division of integers.
__device__ inline u32 over(u32 n, u32 d) { return u32(__fdividef(float(n) + 0.5f, float(d))); }

constexpr u32 SLOTS = 4;  // phases in shared memory: this one, two ahead and one on its way

// A block's shared memory: the ring, then what phases place there, then the phases.
constexpr u32 DEPTH = 6;  // steps that a warp copies ahead
constexpr u32 RING = WARPS * DEPTH * STEP, AREA = 48 << 10, MOST_CHOICES = 32;

// What outlives a phase.
struct Kept {
    alignas(16) float squares[WARPS];  // of the row, by warp, and the F32 unit's sums
    alignas(16) float plain[WARPS];
    Segment segment;  // the row's
    RowPlace place;
    u32 chosen[MOST_CHOICES];
    float weight[MOST_CHOICES];
    float factor[MOST_CHOICES + 1];  // what a chain's matrices are worth
    float scores[256];
    uint4 keys[64];  // of 256 experts
    float inverse;  // of the last norm
};

// ---- the meeting of all blocks

struct Meeting {
    u32* arrivals;  // [2]: those of all meetings of a launch, and blocks that are done
    u32 target = 0;

    // All threads of the block have passed a barrier since they last wrote.
    __device__ inline void arrive() {
        target += gridDim.x;
        if (threadIdx.x != 0) return;
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
    }

    __device__ inline void wait() const {
        if (threadIdx.x == 0) {
            u32 there;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(arrivals) : "memory");
            } while (there < target);
        }
        __syncthreads();
    }

    // The last block leaves the counts as it found them.
    __device__ inline void end() const {
        if (threadIdx.x != 0) return;
        if (atomicAdd(arrivals + 1, 1) != gridDim.x - 1) return;
        arrivals[0] = 0;
        arrivals[1] = 0;
    }
};
