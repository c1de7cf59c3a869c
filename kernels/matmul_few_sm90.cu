// out = f(x weight^T + bias), or out += scale * f(x weight^T + bias), for a few rows to some dozens and an NVFP4 weight
// (common_few_sm90.cuh).
//
// The operands are those of matmul_few.cu; whole stripes and chunks of block scales. An item is 8 * NT rows: the weight is
// read again for each, by blocks that run at the same time, so that it comes from the cache.
#include "common_few_sm90.cuh"

// Twin of `Dense` in matmul_few.rs.
struct Dense {
    Window x;
    Bank w;
    const float* bias;
    Store how;
    Window out;
    Cut cut;
    u32 rows, function;
};

template <int NT>
__device__ inline void few(const Dense& p) {
    constexpr u32 ROWS = 8 * NT;
    extern __shared__ __align__(128) char memory[];
    __shared__ Item items[MOST_ITEMS];
    __shared__ u64 words[RINGS + 1];
    char* staging = memory + RINGS * p.cut.step * UNIT;
    float* partial = reinterpret_cast<float*>(staging + p.cut.rows * p.cut.pitch);
    Barriers barriers(words);
    release_next();
    auto list = [&](u32 item) {
        u32 start = (item + threadIdx.x) * ROWS;
        if (threadIdx.x < MOST_ITEMS && start < p.rows) items[threadIdx.x] = {0, start, min(ROWS, p.rows - start), p.w.scale[0] * FACTOR<W_NVFP4>};
    };
    each_round(p.cut, (p.rows + ROWS - 1) / ROWS, items, list, [&](const Round& round, u32 staged) {
        auto fill = [&]() {
            await_previous();
            u32 bytes = p.w.cols * 2;
            if (threadIdx.x == 0) barrier_expect(barriers.rows(), staged * bytes);
            if (threadIdx.x >= staged) return;
            copy_bulk(shared_address(staging) + threadIdx.x * p.cut.pitch, p.x.data + u64(items[0].start + threadIdx.x) * p.x.stride * 2,
                      bytes, barriers.rows());
        };
        run_round<NT>(p.w, items, p.cut, round, shared_address(memory), barriers, staging, partial, fill,
                      [&](const Item& item, u32 output, u32 row, float v) {
            if (row >= item.count) return;
            v = v * item.factor + (p.bias ? p.bias[output] : 0.0f);
            if (p.function == RELU2) v = fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
            else if (p.function != IDENTITY) v = apply_rare(p.function, v);
            store(p.out, item.start + row, output, v, p.how);
        });
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) matmul_few_sm90_1(const __grid_constant__ Dense p) { few<1>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) matmul_few_sm90_2(const __grid_constant__ Dense p) { few<2>(p); }
