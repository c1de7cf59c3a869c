// A warp's ring of steps of weights, which runs ahead of what the warp computes, over the ends of phases.
//
// A block takes the tiles of a phase that lie gridDim.x apart; their steps, one tile after the other, are dealt to its warps
// in equal runs. A warp copies its steps itself, DEPTH ahead, and stops where the next phase's weights depend on a choice
// that is not made yet. A step is 1024 bytes of codes and, of NVFP4, 128 of block scales (common_nvfp4.cuh).
#pragma once
#include "common_program.cuh"

// This block's tiles of a phase, and the steps of one of its warps.
struct Share {
    u32 tiles, steps, first, last;
    __device__ inline explicit Share(const Products& p) {
        tiles = p.share + (blockIdx.x < p.extra);
        u32 all = tiles * p.length;
        steps = (all + WARPS - 1) / WARPS;
        first = min(threadIdx.x / 32 * steps, all);
        last = min(first + steps, all);
    }
};

// Where a tile of the block lies.
struct Place {
    u32 unit, copy, tile;
    __device__ inline Place(const Products& p, u32 index) : unit(0), copy(0), tile(blockIdx.x + index * gridDim.x) {
        if (p.chained) return;
        u32 begin = 0;
        while (tile >= p.unit[unit].end) begin = p.unit[unit++].end;
        tile -= begin;
        u32 each = p.unit[unit].tiles;
        if (tile < each) return;
        copy = over(tile, each);
        tile -= copy * each;
    }
    __device__ inline u32 matrix(const Products& p, const Kept& kept) const {
        return p.unit[unit].chosen ? kept.chosen[copy] : copy;
    }
};

struct Ring {
    const Phase* slots;
    const Kept& kept;
    u32 count;    // phases of the program
    u32 phase;    // whose steps are copied
    u32 at = 0, end = 0, left = 0;  // the warp's steps of that phase, and of the run
    bool open = false;
    const u8* codes;   // this lane's first piece of the next step
    const u8* scales;  // and its word of block scales
    u32 pace = 0;      // from there to its second piece, and from that to the next step's first
    u32 whole = 0, last = 0;  // which of the three there are: in a step, and in the run's last
    u32 base;                 // of the ring, where this lane's first pieces lie
    u32 write = 0, read = 0, held = 0;  // offsets of steps in it, and how many there are

    __device__ inline Ring(char* memory, const Phase* phases, const Kept& of, u32 all)
        : slots(phases), kept(of), count(all), phase(0), codes(nullptr), scales(nullptr),
          base(shared_address(memory) + threadIdx.x / 32 * (DEPTH * STEP) + threadIdx.x % 32 * 16) {}

    // Turns to the run that begins at step `at`.
    __device__ inline void turn(const Products& p) {
        u32 index = over(at, p.length), within = at - index * p.length;
        Place place(p, index);
        u32 steps = p.steps;
        if (p.chained) {
            place.copy = min(over(within, p.steps), p.chained);
            within -= place.copy * p.steps;
            if (place.copy == p.chained) place.unit = 1, place.copy = 0, steps = p.length - p.chained * p.steps;
        }
        left = min(steps - within, end - at);
        const Bank& w = p.unit[place.unit].w;
        bool integers = p.format == W_NVFP4;
        u32 lane = threadIdx.x % 32, t = lane % 4, rows = w.rows, cols = w.cols, output = place.tile * OUTPUTS;
        u32 pieces = cols / (integers ? 32 : 8), matrix = place.matrix(p, kept) * rows, word = lane / OUTPUTS;
        if (integers) {
            // Whole stripes and chunks: the place of the step, and in it those of the lane (`scale_place`).
            u64 place = u64(matrix + output / STRIPE * STRIPE) * (cols / 16) + within * (4 * CHUNK * STRIPE) + output % STRIPE * CHUNK;
            codes = w.data + 8 * (place + t / 2 * (CHUNK * STRIPE) + lane / 4 * CHUNK + t % 2 * 2);
            scales = w.scales + (place + word * (CHUNK * STRIPE) + lane % OUTPUTS * CHUNK);
            pace = 16 * CHUNK * STRIPE;
        } else {
            codes = w.data + u64(matrix + min(output + lane / 4, rows - 1)) * (pieces * 16) + t * 16 + within * 128;
            pace = 64;
        }
        // Pieces and words from the run's last step on.
        u32 step = (within + left - 1) * 8;
        whole = integers ? 7 : 3;
        last = (step + t < pieces) | (step + t + 4 < pieces) << 1 | (integers && step / 2 + word < cols / 64) << 2;
    }

    // Whether there is a step to copy, while the block is in phase `now`.
    __device__ inline bool advance(u32 now) {
        while (left == 0) {
            if (open && at < end) {
                turn(slots[phase % SLOTS].products);
                at += left;
                return true;
            }
            if (open) phase++;
            open = false;
            if (phase >= count || phase > now + 2) return false;
            const Phase& next = slots[phase % SLOTS];
            if (phase > now + next.lead) return false;
            at = end = 0;
            open = true;
            if (next.kind == PRODUCTS) {
                Share share(next.products);
                at = share.first, end = share.last;
            }
        }
        return true;
    }

    // Queues a step, which is there, as one group of copies.
    __device__ inline void copy() {
        u32 to = base + write, there = left > 1 ? whole : last;
        copy_async(to, codes, there & 1 ? 16 : 0);
        codes += pace;
        copy_async(to + 512, codes, there & 2 ? 16 : 0);
        if (whole & 4) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 1024 - threadIdx.x % 32 * 12),
                         "l"(scales), "r"(there & 4)
                         : "memory");
        }
        codes += pace, scales += 4 * CHUNK * STRIPE;
        left--, held++;
        write = write + STEP == DEPTH * STEP ? 0 : write + STEP;
        copy_commit();
    }

    // Queues a step where there is one; one group of copies in any case.
    __device__ inline void next(u32 now) {
        if (left > 0 || advance(now)) copy();
        else copy_commit();
    }

    // Fills the ring. Afterwards DEPTH - 1 groups follow that of the oldest step.
    __device__ inline void fill(u32 now) {
        u32 empty = DEPTH - held;
#pragma unroll 1
        for (; empty > 0 && advance(now); empty--) copy();
        for (; empty > 0; empty--) copy_commit();
    }

    // The oldest step, into registers; `scales` are two neighbouring blocks' for each half.
    template <u32 FORMAT>
    __device__ inline void take(uint4* codes, u32* blocks) {
        u32 lane = threadIdx.x % 32, from = base + read;
        copy_wait<DEPTH - 1>();
        __syncwarp();
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            codes[h] = load_shared(from + h * 512);
            if (FORMAT == W_BF16) continue;
            u32 scale = from - lane * 16 + 1024 + lane % 4 / 2 * 32 + lane / 4 * 4 + lane % 2 * 2;
            blocks[h] = load_shared_u16(scale + h * 64);
        }
        held--;
        read = read + STEP == DEPTH * STEP ? 0 : read + STEP;
    }
};
