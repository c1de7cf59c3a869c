// Products of few rows by a list of matrices in BF16 or FP8 (NVFP4: common_few_sm90.cuh): one block a multiprocessor, weights
// read once through rings that do not drain between tiles.
//
// Work is a list of items, each one matrix and up to 8 * NT rows, and of each item tiles of 16 outputs. A block takes
// tiles that follow each other, over the end of an item too; a tile is `splits` runs of steps along its columns, and a
// warp takes runs that follow each other. It copies its own steps, STAGES ahead, and waits for no other warp before tiles
// that warps share are joined. Runs are summed from zero and joined in order, so that a row's sum does not depend on who
// computes it: equal rows give one answer.
//
// A step is 128 stored bytes of each output, a whole line of memory, met in two halves: lane (g = lane / 4, t = lane % 4)
// holds 16 bytes of outputs g and g + 8, the A operand of mma.m16n8k16. Row g of the item is column g of B, its columns
// staged in the order in which lanes read them.
#pragma once
#include "common_mma.cuh"

constexpr u32 WARPS = 16, THREADS = 32 * WARPS, STEP = 2048;  // a step's bytes
constexpr int STAGES = 2;                                         // of a warp's ring
constexpr u32 MOST_ITEMS = 4;                                     // of a round

// Pieces of 8 columns of activations that one 16-byte piece of the weight meets.
template <int FORMAT>
constexpr u32 PARTS = COLUMNS<FORMAT> / 8;

struct Item {
    u32 expert, start, count, unused;  // rows start .. start + count of the sorted ones
};

// A round of a block: tiles first .. first + count of the whole list, beginning in item `item`.
struct Round {
    u32 first, count, item;
};

// How tiles are cut. Twin of `Cut` in common_few.rs.
struct Cut {
    u32 tiles, steps, halves;          // of a matrix; of a tile; and half steps
    u32 splits, chunk;                 // runs of a tile; steps of a run
    u32 pitch, items;                  // bytes of a staged row; most items of a round
    u32 by_tile;                       // whether runs of shared tiles are kept by tile, or by the warp a tile begins in
};

// ---- a step's arithmetic

// Meets half a step with 8 * NT rows; `x` is this lane's place in them.
template <int FORMAT, int NT>
__device__ inline void meet(const uint4* pieces, u32 x, u32 pitch, float (*sums)[4]) {
#pragma unroll
    for (u32 part = 0; part < PARTS<FORMAT>; part++) {
        uint4 rows[NT];
#pragma unroll
        for (u32 j = 0; j < NT; j++) rows[j] = load_shared(x + part * 64 + j * 8 * pitch);
        u32 low[4], high[4], a[4];
        const u32 words = 4 / PARTS<FORMAT> * part;
        dequantise<FORMAT>(&pieces[0].x + words, 0, low);
        dequantise<FORMAT>(&pieces[1].x + words, 0, high);
#pragma unroll
        for (int q = 0; q < 2; q++) {
            fragment(low, high, q, a);
#pragma unroll
            for (u32 j = 0; j < NT; j++) mma(sums[j], a, (&rows[j].x)[2 * q], (&rows[j].x)[2 * q + 1]);
        }
    }
}

// ---- the weight

// Copies a warp's runs ahead.
template <int FORMAT>
struct Feed {
    const Bank& w;
    const Item* items;
    const Cut& cut;
    const Round& round;
    const u8* codes;  // this lane's first piece of the next step
    u32 further[3];   // from there to its other pieces
    int pieces;       // steps that still have them
    u32 at, end;      // in the ring: the oldest step, whose place the next one takes
    u32 run, last, left = 0;

    __device__ inline Feed(const Bank& weight, const Item* list, const Cut& how, const Round& what, char* ring, u32 first, u32 behind)
        : w(weight), items(list), cut(how), round(what), run(first), last(behind) {
        at = shared_address(ring) + threadIdx.x / 32 * (STAGES * STEP);
        end = at + STAGES * STEP;
        open();
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) next();
    }

    // Turns to the next run.
    __device__ inline void open() {
        if (run >= last) return;
        u32 lane = threadIdx.x % 32, row = lane / 8, tile = round.first + run / cut.splits;
        u32 step = run % cut.splits * cut.chunk, output = tile % cut.tiles * 16;
        u64 matrix = u64(items[tile / cut.tiles - round.item].expert) * w.rows, bytes = u64(w.cols) * 16 / COLUMNS<FORMAT>;
        auto line = [&](u32 row) { return matrix + min(output + row, w.rows - 1); };
        codes = w.data + line(row) * bytes + step * 128 + lane % 8 * 16;
#pragma unroll
        for (u32 i = 0; i < 3; i++) further[i] = u32((line(row + 4 * i + 4) - line(row)) * bytes);
        pieces = int((w.cols / COLUMNS<FORMAT> + 7 - lane % 8) / 8) - int(step);
        left = min(cut.chunk, cut.steps - step);
        run++;
    }

    // Queues the next step, an empty one behind the last.
    __device__ inline void next() {
        if (left > 0) {
            u32 lane = threadIdx.x % 32, half = lane / 4 % 2, bytes = pieces > 0 ? 16 : 0;
            u32 to = at + half * (STEP / 2) + ((lane / 8 * 64 + lane % 4 * 16) ^ half * 64);
            copy_async(to, codes, bytes);
#pragma unroll
            for (u32 i = 0; i < 3; i++) copy_async(to + 256 * (i + 1), codes + further[i], bytes);
            codes += 128, pieces--;
            if (--left == 0) open();
        }
        copy_commit();
        at += STEP;
        if (at == end) at -= STAGES * STEP;
    }

    // Waits for the oldest step.
    __device__ inline void wait() const {
        copy_wait<STAGES - 1>();
        __syncwarp();
    }

    // Half of it, two pieces, into registers. Halves are stored half the banks apart.
    __device__ inline void take(u32 half, uint4* pair) const {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < 2; h++) pair[h] = load_shared(at + half * (STEP / 2) + h * 512 + (lane * 16 ^ half * 64));
    }
};

// ---- the activations

// Stages the rows of `count` items, zeros where an item has fewer and past `cols`; `row(item, i)` is where one lies.
template <int FORMAT, int NT, class ROW>
__device__ inline void stage_rows(char* staging, const Item* items, u32 count, u32 cols, u32 pitch, ROW row) {
    constexpr u32 P = PARTS<FORMAT>, ROWS = 8 * NT;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 i = warp; i < count * ROWS; i += WARPS) {
        bool there = i % ROWS < items[i / ROWS].count;
        const u16* from = there ? row(items[i / ROWS], i % ROWS) : nullptr;
        uint4* to = reinterpret_cast<uint4*>(staging + i * pitch);
#pragma unroll 4
        for (u32 piece = lane; piece < (pitch - 64) / 16; piece += 32) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (there && piece * 8 < cols) v = *reinterpret_cast<const uint4*>(from + piece * 8);
            to[piece / (4 * P) * (4 * P) + piece % P * 4 + piece / P % 4] = v;
        }
    }
}

// ---- a block's round

// `fill()` stages the rows, `put(item, output, row, sum)` takes the sums; `partial` holds splits * NT * 128 floats for each tile or
// warp that shares one.
template <int FORMAT, int NT, class FILL, class PUT>
__device__ inline void run_round(const Bank& w, const Item* items, const Cut& cut, const Round& round, char* ring,
                                 const char* staging, float* partial, FILL fill, PUT put) {
    constexpr u32 SUMS = NT * 128;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, runs = round.count * cut.splits, each = (runs + WARPS - 1) / WARPS;
    u32 first = min(warp * each, runs), last = min(first + each, runs);
    Feed<FORMAT> feed(w, items, cut, round, ring, first, last);
    auto kept = [&](u32 tile) { return partial + (cut.by_tile ? tile : tile * cut.splits / each) * cut.splits * SUMS; };
    fill();
    __syncthreads();
    u32 mine = shared_address(staging) + lane / 4 * cut.pitch + lane % 4 * 16;
    float total[NT][4] = {};
#pragma unroll 1
    for (u32 run = first; run < last; run++) {
        u32 tile = run / cut.splits, part = run % cut.splits, whole = round.first + tile, item = whole / cut.tiles - round.item;
        u32 half = 2 * part * cut.chunk, x = mine + item * 8 * NT * cut.pitch + half * (64 * PARTS<FORMAT>);
        float sums[NT][4] = {};
#pragma unroll 1
        for (u32 left = min(2 * cut.chunk, cut.halves - half), which = 0; left > 0; left--, x += 64 * PARTS<FORMAT>) {
            uint4 pair[2];
            if (which == 0) feed.wait();
            feed.take(which, pair);
            meet<FORMAT, NT>(pair, x, cut.pitch, sums);
            which ^= 1;
            if (which != 0 && left > 1) continue;
            __syncwarp();
            feed.next();
        }
        bool shared = tile * cut.splits < first || (tile + 1) * cut.splits > last;
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (shared) kept(tile)[part * SUMS + (4 * j + c) * 32 + lane] = sums[j][c];
                total[j][c] = part == 0 ? sums[j][c] : total[j][c] + sums[j][c];
                if (shared || part + 1 < cut.splits) continue;
                put(items[item], whole % cut.tiles * 16 + lane / 4 + c / 2 * 8, 8 * j + lane % 4 * 2 + c % 2, total[j][c]);
            }
        }
    }
    copy_wait<0>();
    __syncthreads();
    // The tile in which a warp ends, where it begins there too and others go on with it.
    for (u32 i = threadIdx.x; i < WARPS * SUMS; i += THREADS) {
        u32 owner = i / SUMS, place = i % SUMS, behind = (owner + 1) * each, tile = (behind - 1) / cut.splits;
        if (behind >= runs || (tile + 1) * cut.splits <= behind || tile * cut.splits / each != owner) continue;
        const float* from = kept(tile) + place;
        float sum = from[0];
        for (u32 part = 1; part < cut.splits; part++) sum += from[part * SUMS];
        u32 whole = round.first + tile, c = place / 32 % 4;
        put(items[whole / cut.tiles - round.item], whole % cut.tiles * 16 + place % 32 / 4 + c / 2 * 8,
            place / 128 * 8 + place % 4 * 2 + c % 2, sum);
    }
    __syncthreads();
}

// The tiles of `items` items that are this block's, a round of up to `most` items after the other.
template <class RUN>
__device__ inline void each_round(const Cut& cut, u32 items, RUN run) {
    u32 tiles = items * cut.tiles, behind = u32(u64(tiles) * (blockIdx.x + 1) / gridDim.x);
    for (u32 first = u32(u64(tiles) * blockIdx.x / gridDim.x); first < behind;) {
        u32 item = first / cut.tiles, last = min(behind, (item + cut.items) * cut.tiles);
        run(Round{first, last - first, item});
        first = last;
    }
}
