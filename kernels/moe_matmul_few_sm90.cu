// out[pair] = f(x[input row] weight[expert]^T) for pairs sorted by expert, few of each, and NVFP4 weights (common_few_sm90.cuh).
//
// The operands are those of moe_matmul.cu; whole stripes and chunks of block scales, x bf16. An item is an expert and up to
// eight of its pairs; an expert with more is read again, by blocks that run at the same time, so that it comes from the
// cache. A block's tiles go on over the end of an item; a round is as many items as have their rows staged together.
// Limit: THREADS experts.
//
// Behind the experts' items come those of a weight beside them, the shared expert's, which all rows meet: cut along its columns
// into `parts` of an expert's width, each like one more expert, whose sums stay in f32 and apart.
#include "common_few_sm90.cuh"

// Twin of `Few` in moe_matmul.rs.
struct Few {
    Window x;
    Bank w;
    const u32* order;
    const u32* offsets;
    Window out;
    Cut cut;
    u32 by_pair, top_k, function;
    u32 early;  // whether the pairs are known before the kernel ahead is done
};

// Twin of `Beside` in moe_matmul.rs.
struct Beside {
    Bank w;       // [outputs, parts * inputs]
    Window x;     // [rows, parts * inputs]
    float* sums;  // [parts, rows, outputs]
    u32 parts, rows;
    u32 pairs, unused;  // of the experts
};

constexpr u32 ROWS = 8, MOST_ITEMS = 8, MOST_STAGED = 32;  // most rows of an item; items and rows of a round

struct Item {
    u32 matrix, start, count;  // rows start .. start + count of the sorted ones, behind which lie those of the parts
    float factor;              // of its sums
    u32 part;                  // 0 for an expert's, 1 for the first part's
};

// A round of a block: tiles first .. first + count of the whole list, in `items` items from `item` on.
struct Round {
    u32 first, count, item, items;
};

// `fill()` queues the copies of the rows, `put(item, output, row, sum)` takes the sums; `partial` holds splits * 128 floats for
// each tile or warp that shares one.
template <class FILL, class PUT>
__device__ inline void run_round(const Bank& w, const Bank& beside, const Item* items, const Cut& cut, const Round& round, u32 memory,
                                 Barriers& barriers, const char* staging, float* partial, FILL fill, PUT put) {
    constexpr u32 SUMS = 128;
    u32 lane = threadIdx.x % 32, warp = this_warp(), runs = round.count * cut.splits, each = (runs + WARPS - 1) / WARPS;
    u32 first = min(warp * each, runs), tile = first / cut.splits, whole = round.first + tile, item = whole / cut.tiles;
    Place place{min(each, runs - first), first - tile * cut.splits, whole - item * cut.tiles, item - round.item};
    auto locate = [&](const Place& at) {
        const Item& item = items[at.item];
        u32 unit = at.part * cut.chunk;
        if (item.part > 0) return Steps(beside, 0, at.in, unit + (item.part - 1) * cut.units);
        return Steps(w, u64(item.matrix) * w.rows, at.in, unit);
    };
    Feed<decltype(locate)> feed(cut, locate, place, memory, barriers);
    fill();
    u32 before = tile * cut.splits / each;  // the warp in which this one's first tile begins
    auto kept = [&](u32 tile, u32 owner) { return partial + (cut.by_tile ? tile : owner) * cut.splits * SUMS; };
    u32 line[1];
    auto find_rows = [&]() {
        if (place.left == 0) return;
        const Item& item = items[place.item];
        u32 from = shared_address(staging) + (item.start - items[0].start) * cut.pitch + lane % 4 * 32;
        line[0] = from + min(lane / 4, item.count - 1) * cut.pitch;
    };
    find_rows();
    __syncthreads();
    barriers.wait_rows();
#pragma unroll 1
    for (; place.left > 0; tile++) {
        float total[4] = {};
        Place at = place;
        bool shared = place.part > 0 || place.left < cut.splits, moved = false;
        float* keep = kept(tile, place.part > 0 ? before : warp) + lane;
#pragma unroll 1
        do {
            float sums[1][4] = {};
            meet_run<1>(feed, barriers, place.units(cut), line, place.part * cut.chunk * 128, sums);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (shared) keep[place.part * SUMS + c * 32] = sums[0][c];
                total[c] += sums[0][c];
            }
            moved = place.next(cut);
        } while (place.part > 0 && place.left > 0);
        if (moved) find_rows();
        if (shared) continue;
#pragma unroll
        for (int c = 0; c < 4; c++) put(items[at.item], at.in * 16 + lane / 4 + c / 2 * 8, lane % 4 * 2 + c % 2, total[c]);
    }
    __syncthreads();
    // The tile in which a warp ends, where it begins there too and others go on with it.
    for (u32 i = threadIdx.x; i < WARPS * SUMS; i += THREADS) {
        u32 owner = i / SUMS, place = i % SUMS, behind = (owner + 1) * each, tile = (behind - 1) / cut.splits;
        if (behind >= runs || (tile + 1) * cut.splits <= behind || tile * cut.splits / each != owner) continue;
        const float* from = kept(tile, owner) + place;
        float sum = 0.0f;
        for (u32 part = 0; part < cut.splits; part++) sum += from[part * SUMS];
        u32 whole = round.first + tile, c = place / 32 % 4;
        put(items[whole / cut.tiles - round.item], whole % cut.tiles * 16 + place % 32 / 4 + c / 2 * 8,
            place % 4 * 2 + c % 2, sum);
    }
    __syncthreads();
}

// The tiles of `items` items that are this block's. `list(item)` writes up to MOST_ITEMS items from there on; a round takes
// as many of them as have their rows staged together.
template <class LIST, class RUN>
__device__ inline void each_round(const Cut& cut, u32 count, const Item* items, LIST list, RUN run) {
    u32 tiles = count * cut.tiles, behind = u32(u64(tiles) * (blockIdx.x + 1) / gridDim.x);
    for (u32 first = u32(u64(tiles) * blockIdx.x / gridDim.x); first < behind;) {
        u32 item = first / cut.tiles, most = min((behind - 1) / cut.tiles - item + 1, MOST_ITEMS), taken = 1;
        list(item);
        __syncthreads();
        auto staged = [&](u32 count) { return items[count - 1].start + items[count - 1].count - items[0].start; };
        while (taken < most && staged(taken + 1) <= cut.rows) taken++;
        u32 last = min(behind, (item + taken) * cut.tiles);
        run(Round{first, last - first, item, taken}, staged(taken));
        first = last;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) moe_matmul_few_sm90(const __grid_constant__ Few p,
                                                                              const __grid_constant__ Beside beside) {
    extern __shared__ __align__(128) char memory[];
    __shared__ Item items[MOST_ITEMS];
    __shared__ u32 rows[MOST_STAGED], scratch[32];
    __shared__ u64 words[RINGS + 1];
    char* staging = memory + RINGS * p.cut.step * UNIT;
    float* partial = reinterpret_cast<float*>(staging + p.cut.rows * p.cut.pitch);
    Barriers barriers(words);
    release_next();
    if (!p.early) await_previous();
    // Every expert has a thread: its pairs, and where its items begin among all.
    u32 start = 0, pairs = 0, all;
    if (threadIdx.x < p.w.experts) {
        start = p.offsets[threadIdx.x];
        pairs = p.offsets[threadIdx.x + 1] - start;
    }
    u32 first = block_before((pairs + ROWS - 1) / ROWS, scratch, all), eights = (beside.rows + ROWS - 1) / ROWS;
    auto list = [&](u32 item) {
        u32 number = item + threadIdx.x - all;  // among those of the parts; before them beyond all bounds
        if (threadIdx.x < MOST_ITEMS && number < beside.parts * eights) {
            u32 part = number / eights, skipped = number % eights * ROWS;
            items[threadIdx.x] = {0, beside.pairs + part * beside.rows + skipped, min(ROWS, beside.rows - skipped),
                                  beside.w.scale[0] * FACTOR<W_NVFP4>, part + 1};
        }
        for (u32 i = 0; i < MOST_ITEMS; i++) {
            u32 skipped = (item + i - first) * ROWS;
            if (item + i < first || skipped >= pairs) continue;
            items[i] = {threadIdx.x, start + skipped, min(ROWS, pairs - skipped), p.w.scale[threadIdx.x] * FACTOR<W_NVFP4>, 0};
        }
    };
    // Where a staged row comes from, and which it is: a pair, or a place behind the pairs.
    auto source = [&](u32 place, u32& row) {
        row = place;
        u32 other = place - beside.pairs;
        if (place >= beside.pairs) {
            return beside.x.data + (u64(other % beside.rows) * beside.x.stride + other / beside.rows * p.w.cols) * 2;
        }
        row = p.order[place];
        return p.x.data + u64(p.by_pair ? row : row / p.top_k) * p.x.stride * 2;
    };
    each_round(p.cut, all + beside.parts * eights, items, list, [&](const Round& round, u32 staged) {
        auto fill = [&]() {
            await_previous();
            u32 bytes = p.w.cols * 2;
            if (threadIdx.x == 0) barrier_expect(barriers.rows(), staged * bytes);
            if (threadIdx.x >= staged) return;
            const char* from = source(items[0].start + threadIdx.x, rows[threadIdx.x]);
            copy_bulk(shared_address(staging) + threadIdx.x * p.cut.pitch, from, bytes, barriers.rows());
        };
        run_round(p.w, beside.w, items, p.cut, round, shared_address(memory), barriers, staging, partial, fill,
                     [&](const Item& item, u32 output, u32 row, float v) {
            if (row >= item.count) return;
            v *= item.factor;
            u32 to = rows[item.start - items[0].start + row];
            if (item.part > 0) {
                beside.sums[u64(to - beside.pairs) * p.w.rows + output] = v;
                return;
            }
            if (p.function == RELU2) v = fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
            else if (p.function != IDENTITY) v = apply_rare(p.function, v);
            store(p.out, to, output, v);
        });
    });
}
