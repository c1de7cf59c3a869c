// Tiles of experts' pairs for blocks that take one after the other: popular experts, whose tiles are the longest, first.
//
// order [pairs] lists the pairs by expert, offsets [experts + 1] are the first of each (moe_group.cu). An expert's pairs are
// dealt evenly over as few tiles of up to MOST as hold them. Up to 512 experts, no more than threads in the block.
#pragma once
#include "common.cuh"

constexpr u32 MOST_EXPERTS = 512;

struct Place {
    u32 expert, start, count, first;  // `count` pairs from `start` on, outputs from `first` on
};

// By rank of popularity: first tile, expert, first pair, pairs.
struct Ranked {
    u32 tiles[MOST_EXPERTS + 1], expert[MOST_EXPERTS], start[MOST_EXPERTS], count[MOST_EXPERTS], scratch[32];

    // By the whole block.
    __device__ inline void rank(const u32* offsets, u32 experts, u32 most) {
        u32 mine = threadIdx.x, start = 0, pairs = 0, place = 0;
        if (mine < experts) {
            start = offsets[mine];
            pairs = offsets[mine + 1] - start;
            count[mine] = pairs;
        }
        __syncthreads();
        for (u32 other = 0; other < experts; other++) {
            u32 its = count[other];
            place += its > pairs || (its == pairs && other < mine);
        }
        __syncthreads();
        if (mine < experts) {
            count[place] = pairs;
            expert[place] = mine;
            this->start[place] = start;
        }
        __syncthreads();
        u32 all, before = block_before(mine < experts ? (count[mine] + most - 1) / most : 0, scratch, all);
        if (mine < experts) tiles[mine] = before;
        if (mine == 0) tiles[experts] = all;
        __syncthreads();
    }

    // Tile `number` of those that are `outputs` wide; its count is 0 past the last, PADDING where even dealing left it none.
    __device__ inline Place find(u32 number, u32 experts, u32 rows, u32 outputs) const {
        u32 across = (rows + outputs - 1) / outputs, tile = number / across, low = 0, high = experts;
        if (tile >= tiles[high]) return {0, 0, 0, 0};
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            if (tiles[middle] <= tile) low = middle;
            else high = middle;
        }
        u32 its = tiles[low + 1] - tiles[low], pairs = count[low];
        u32 size = (pairs + its - 1) / its, skipped = (tile - tiles[low]) * size;
        u32 rest = min(size, pairs > skipped ? pairs - skipped : 0);
        return {expert[low], start[low] + skipped, rest ? rest : PADDING, number % across * outputs};
    }
};
