// out[pair] = f(x[input row] weight[expert]^T) for pairs sorted by expert, few of each, and NVFP4 weights (common_few_sm90.cuh).
//
// The operands are those of moe_matmul.cu; whole stripes and chunks of block scales, x bf16. An item is an expert and up to
// eight of its pairs; an expert with more is read again, by blocks that run at the same time, so that it comes from the
// cache. Limit: THREADS experts.
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

constexpr u32 ROWS = 8;

extern "C" __global__ void __launch_bounds__(THREADS, 1) moe_matmul_few_sm90(const __grid_constant__ Few p) {
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
    u32 first = block_before((pairs + ROWS - 1) / ROWS, scratch, all);
    auto list = [&](u32 item) {
        for (u32 i = 0; i < MOST_ITEMS; i++) {
            u32 skipped = (item + i - first) * ROWS;
            if (item + i < first || skipped >= pairs) continue;
            items[i] = {threadIdx.x, start + skipped, min(ROWS, pairs - skipped), p.w.scale[threadIdx.x] * FACTOR<W_NVFP4>};
        }
    };
    each_round(p.cut, all, items, list, [&](const Round& round, u32 staged) {
        auto fill = [&]() {
            await_previous();
            u32 bytes = p.w.cols * 2;
            if (threadIdx.x == 0) barrier_expect(barriers.rows(), staged * bytes);
            if (threadIdx.x >= staged) return;
            u32 pair = p.order[items[0].start + threadIdx.x];
            rows[threadIdx.x] = pair;
            copy_bulk(shared_address(staging) + threadIdx.x * p.cut.pitch,
                      p.x.data + u64(p.by_pair ? pair : pair / p.top_k) * p.x.stride * 2, bytes, barriers.rows());
        };
        run_round<1>(p.w, items, p.cut, round, shared_address(memory), barriers, staging, partial, fill,
                     [&](const Item& item, u32 output, u32 row, float v) {
            if (row >= item.count) return;
            v *= item.factor;
            if (p.function == RELU2) v = fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
            else if (p.function != IDENTITY) v = apply_rare(p.function, v);
            store(p.out, rows[item.start - items[0].start + row], output, v);
        });
    });
}
