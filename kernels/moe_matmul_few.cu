// out[pair] = f(x[input row] weight[expert]^T) for pairs sorted by expert, few of each (common_few.cuh).
//
// The operands are those of moe_matmul.cu; weight in BF16 or FP8 (NVFP4: moe_matmul_few_sm90.cu) with whole 16-byte pieces in
// a row, x bf16. An item is an expert and up to eight of its pairs; an expert with more is read again, by blocks that run at
// the same time, so that it comes from the cache. Limit: THREADS experts.
#include "common_few.cuh"

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

constexpr u32 ROWS = 8;

// Every expert has a thread: how many items there are, and where those of this thread's expert begin.
__device__ inline u32 count_items(const Few& p, u32& start, u32& pairs, u32& first) {
    __shared__ u32 scratch[32];
    start = pairs = 0;
    if (threadIdx.x < p.w.experts) {
        start = p.offsets[threadIdx.x];
        pairs = p.offsets[threadIdx.x + 1] - start;
    }
    u32 all;
    first = block_before((pairs + ROWS - 1) / ROWS, scratch, all);
    return all;
}

template <int FORMAT>
__device__ inline void few(const Few& p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ Item items[MOST_ITEMS];
    __shared__ u32 rows[MOST_ITEMS * ROWS];
    char* staging = memory + WARPS * STAGES * STEP;
    float* partial = reinterpret_cast<float*>(staging + p.cut.items * ROWS * p.cut.pitch);
    release_next();
    if (!p.early) await_previous();
    u32 start, pairs, first, all = count_items(p, start, pairs, first);
    const u16* x = reinterpret_cast<const u16*>(p.x.data);
    each_round(p.cut, all, [&](const Round& round) {
        for (u32 i = 0; i < p.cut.items; i++) {
            u32 skipped = (round.item + i - first) * ROWS;
            if (round.item + i >= first && skipped < pairs) items[i] = {threadIdx.x, start + skipped, min(ROWS, pairs - skipped), 0};
        }
        __syncthreads();
        u32 count = (round.first + round.count - 1) / p.cut.tiles - round.item + 1;
        auto fill = [&]() {
            await_previous();
            if (threadIdx.x < count * ROWS) {
                const Item& item = items[threadIdx.x / ROWS];
                rows[threadIdx.x] = threadIdx.x % ROWS < item.count ? p.order[item.start + threadIdx.x % ROWS] : 0;
            }
            __syncthreads();
            stage_rows<FORMAT, 1>(staging, items, count, p.w.cols, p.cut.pitch, [&](const Item& item, u32 row) {
                u32 pair = rows[(&item - items) * ROWS + row];
                return x + u64(p.by_pair ? pair : pair / p.top_k) * p.x.stride;
            });
        };
        run_round<FORMAT, 1>(p.w, items, p.cut, round, memory, staging, partial, fill,
                             [&](const Item& item, u32 output, u32 row, float v) {
            if (row >= item.count || output >= p.w.rows) return;
            v *= p.w.scale[item.expert];
            if (p.function == RELU2) v = fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
            else if (p.function != IDENTITY) v = apply_rare(p.function, v);
            store(p.out, rows[(&item - items) * ROWS + row], output, v);
        });
    });
}

#define FORM(NAME, FORMAT)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) moe_matmul_few_##NAME(const __grid_constant__ Few p) { few<FORMAT>(p); }
FORM(bf16, W_BF16)
FORM(fp8, W_FP8)
