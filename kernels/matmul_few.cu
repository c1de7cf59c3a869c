// out = f(x weight^T + bias), or out += scale * f(x weight^T + bias), for 3 rows up to some dozens and a weight in
// BF16 or FP8 (common_few.cuh).
//
// The operands are those of matmul_vec.cu and a function; x bf16. An item is 8 * NT rows: the weight is read again for
// each, by blocks that run at the same time, so that it comes from the cache.
#include "common_few.cuh"

// Twin of `Dense` in common_few.rs.
struct Dense {
    Window x;
    Bank w;
    const float* bias;
    Store how;
    Window out;
    Cut cut;
    u32 rows, function;
};

template <int FORMAT, int NT>
__device__ inline void few(const Dense& p) {
    constexpr u32 ROWS = 8 * NT;
    extern __shared__ __align__(16) char memory[];
    __shared__ Item items[MOST_ITEMS];
    char* staging = memory + WARPS * STAGES * STEP;
    float* partial = reinterpret_cast<float*>(staging + p.cut.items * ROWS * p.cut.pitch);
    release_next();
    const u16* x = reinterpret_cast<const u16*>(p.x.data);
    float factor = p.w.scale[0];
    each_round(p.cut, (p.rows + ROWS - 1) / ROWS, [&](const Round& round) {
        u32 count = (round.first + round.count - 1) / p.cut.tiles - round.item + 1;
        if (threadIdx.x < count) {
            u32 start = (round.item + threadIdx.x) * ROWS;
            items[threadIdx.x] = {0, start, min(ROWS, p.rows - start), 0};
        }
        __syncthreads();
        auto fill = [&]() {
            await_previous();
            stage_rows<FORMAT, NT>(staging, items, count, p.w.cols, p.cut.pitch,
                                   [&](const Item& item, u32 row) { return x + u64(item.start + row) * p.x.stride; });
        };
        run_round<FORMAT, NT>(p.w, items, p.cut, round, memory, staging, partial, fill,
                              [&](const Item& item, u32 output, u32 row, float v) {
            if (row >= item.count || output >= p.w.rows) return;
            v = v * factor + (p.bias ? p.bias[output] : 0.0f);
            if (p.function == RELU2) v = fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
            else if (p.function != IDENTITY) v = apply_rare(p.function, v);
            store(p.out, item.start + row, output, v, p.how);
        });
    });
}

#define FORM(NAME, FORMAT, NT)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) matmul_few_##NAME##_##NT(                     \
        const __grid_constant__ Dense p) {                                                                 \
        few<FORMAT, NT>(p);                                                                                \
    }
#define FORMS(NAME, FORMAT) FORM(NAME, FORMAT, 1) FORM(NAME, FORMAT, 2)
FORMS(bf16, W_BF16)
FORMS(fp8, W_FP8)
