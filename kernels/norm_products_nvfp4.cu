// out_i = f_i(rms_norm(x) weight_i^T + bias_i) for up to four weights of NVFP4 and one of F32, and a convolution over
// columns of out_0 that moves each sequence on by one token; up to NT rows (common_nvfp4.cuh).
//
// x [rows, inputs] f32, gain [inputs] f32 or null where `normed` holds the normed rows already, normed [rows, inputs] bf16.
// Every block stages x times gain for itself: it comes from the cache, while its weights come from memory. The norm's
// factor joins at the end, so that nothing waits for it. Blocks share out what they leave in `normed`.
//
// A block takes the tiles of 16 outputs that lie gridDim.x apart, and outputs of the F32 weight in the same way: each
// thread meets them with the columns that it stages.
//
// The convolution: out = f(bias + taps . window), raw inputs rounded as out_0 stores them; conv weight [channels, width],
// state [slots * channels, width - 1], one row a sequence. Rows of no sequence move nothing.
#include "common_conv.cuh"
#include "common_nvfp4_stream.cuh"

// Twins of `Product` and `NormProducts` in norm_products_nvfp4.rs. An F32 weight has no tiles and stands last.
struct Product {
    Bank w;
    const float* bias;
    Window out;
    u32 function, tiles;
};
struct NormProducts {
    Window x, normed;
    const float* gain;
    float eps;
    u32 rows, keep, plain;  // `plain`: the F32 product's place, 4 for none
    Conv conv;
    Product products[4];
};

constexpr u32 MOST_PLAIN = 2, MOST_KEPT = 16;  // outputs of the F32 weight of a block, eights of normed columns

// All products' tiles, one after the other.
struct Source {
    const NormProducts& p;
    u32 count;  // of this block
    const Deal& deal;
    u32 runs;

    static __device__ inline u32 mine(const NormProducts& p) {
        u32 tiles = 0;
        for (u32 i = 0; i < 4; i++) tiles += p.products[i].tiles;
        return tiles > blockIdx.x ? (tiles - blockIdx.x - 1) / gridDim.x + 1 : 0;
    }
    __device__ inline explicit Source(const NormProducts& of)
        : p(of), count(mine(of)), deal(Deal::of(count, (p.x.cols + COLUMNS<16> - 1) / COLUMNS<16>)), runs(deal.runs) {}

    // A slot's product, and its tile there.
    __device__ inline const Product& product(u32 slot, u32& tile) const {
        u32 i = 0;
        tile = blockIdx.x + slot * gridDim.x;
        while (tile >= p.products[i].tiles) tile -= p.products[i++].tiles;
        return p.products[i];
    }
    __device__ inline Run run(u32 i) const { return deal.run(i, SPAN<16>); }
    template <class STREAM>
    __device__ inline void open(STREAM& stream, u32 i) const {
        u32 tile;
        const Product& q = product(deal.tile + i, tile);
        stream.open(q.w, tile * 16, deal.step(i));
    }
};

// Windows, taps and biases of the block's channels in shared memory: no kernel of this step has written them.
struct Windows {
    const Conv& conv;
    float* taps;     // [runs, 16, width + 1], the bias last
    float* history;  // [rows, runs, 16, width - 1]
    u32 runs;

    __device__ inline float* past(u32 row, u32 i) const { return history + (row * runs * 16 + i) * (conv.width - 1); }
    // The i-th output's channel.
    __device__ inline u32 channel(u32 i) const { return (blockIdx.x + i / 16 * gridDim.x) * 16 + i % 16 - conv.first; }
    __device__ inline float* window(u32 slot, u32 channel) const {
        return reinterpret_cast<float*>(conv.state.data) + (u64(slot) * conv.channels + channel) * conv.state.stride;
    }

    // All of a channel's loads are on their way before the first is used.
    __device__ inline void fetch_all(u32 rows) const {
        u32 width = conv.width;
        for (u32 i = threadIdx.x; i < runs * 16; i += THREADS) {
            if (channel(i) >= conv.channels) continue;
            float tap[8], past_values[7];
#pragma unroll
            for (u32 j = 0; j < 8; j++) tap[j] = j < width ? conv.weight[u64(channel(i)) * width + j] : 0.0f;
            float bias = conv.bias ? conv.bias[channel(i)] : 0.0f;
            for (u32 row = 0; row < rows; row++) {
                RowPlace place = conv.places[row];
                bool there = place.slot != PADDING && place.position > 0;
                const float* from = window(there ? place.slot : 0, channel(i));
#pragma unroll
                for (u32 j = 0; j < 7; j++) past_values[j] = there && j + 1 < width ? from[j] : 0.0f;
#pragma unroll
                for (u32 j = 0; j < 7; j++) {
                    if (j + 1 < width) past(row, i)[j] = past_values[j];
                }
            }
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                if (j < width) taps[i * (width + 1) + j] = tap[j];
            }
            taps[i * (width + 1) + width] = bias;
        }
    }

    // Meets one raw input with its channel's window and moves the window on.
    __device__ inline void convolve(u32 row, u32 i, float raw) const {
        RowPlace place = conv.places[row];
        if (place.slot == PADDING) return;
        const float* before = past(row, i);
        const float* tap = taps + i * (conv.width + 1);
        float* to = window(place.slot, channel(i));
        u32 history = conv.width - 1;
        float sum = tap[conv.width] + tap[history] * raw;
        for (u32 j = 0; j < history; j++) {
            sum += tap[j] * before[j];
            to[j] = j + 1 < history ? before[j + 1] : raw;
        }
        store(conv.out, row, channel(i), conv.function == SILU ? silu(sum) : apply_rare(conv.function, sum));
    }
};

__device__ inline void put(const NormProducts& p, const Product& q, u32 row, u32 output, float& v) {
    v += q.bias ? q.bias[output] : 0.0f;
    if (q.function != IDENTITY) v = apply_rare(q.function, v);
    store(q.out, row, output, v);
}

// What a block's threads find while they stage the rows: squares and the F32 weight's products, by warp.
template <int NT>
struct Found {
    float squares[NT][WARPS], plain[NT][MOST_PLAIN][WARPS];
    float kept[NT][MOST_KEPT][8];  // the block's share of x times gain
};

template <int NT>
struct Stager {
    const NormProducts& p;
    const Staging& staging;
    float gain[8], weight[8];  // of this thread's first columns, and of the block's first F32 output

    __device__ inline const float* plain_row(u32 i) const {
        const Bank& w = p.products[p.plain].w;
        u32 output = blockIdx.x + i * gridDim.x;
        return output < w.rows ? reinterpret_cast<const float*>(w.data) + u64(output) * w.cols : nullptr;
    }

    __device__ inline Stager(const NormProducts& of, const Staging& at) : p(of), staging(at) {
        u32 first = threadIdx.x * 8;
        if (first >= p.x.cols) return;
        if (p.gain) read_eight(p.gain + first, gain);
        if (p.plain < 4 && plain_row(0)) read_eight(plain_row(0) + first, weight);
    }

    __device__ inline void run(Found<NT>& found) {
        float squares[NT] = {}, plain[NT][MOST_PLAIN] = {};
        by_warps(staging.eights(), [&](u32 eight) {
            u32 first = eight * 8;
            bool there = first < p.x.cols, again = eight != threadIdx.x;
            if (there && again && p.gain) read_eight(p.gain + first, gain);
#pragma unroll
            for (u32 row = 0; row < NT; row++) {
                float v[8] = {};
                if (there && row < p.rows) read_row(row, first, v, squares[row]);
                stage_eight(staging, row, eight, v, 1.0f, eight < staging.eights());
                if (p.keep && there && eight % gridDim.x == blockIdx.x) keep(found.kept[row][eight / gridDim.x], v);
                if (p.plain == 4 || !there) continue;
#pragma unroll
                for (u32 i = 0; i < MOST_PLAIN; i++) {
                    const float* from = plain_row(i);
                    if (!from) continue;
                    float other[8];
                    if (again || i > 0) read_eight(from + first, other);
#pragma unroll
                    for (int k = 0; k < 8; k++) plain[row][i] += v[k] * (again || i > 0 ? other[k] : weight[k]);
                }
            }
        });
        share(found, squares, plain);
    }

    __device__ inline void read_row(u32 row, u32 first, float* v, float& squares) const {
        if (!p.gain) return read_eight(reinterpret_cast<const u16*>(p.normed.data) + row * p.normed.stride + first, v);
        read_eight(reinterpret_cast<const float*>(p.x.data) + row * p.x.stride + first, v);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            squares += v[k] * v[k];
            v[k] *= gain[k];
        }
    }

    __device__ inline void keep(float* to, const float* v) const {
#pragma unroll
        for (int k = 0; k < 8; k++) to[k] = v[k];
    }

    __device__ inline void share(Found<NT>& found, const float* squares, const float (*plain)[MOST_PLAIN]) const {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (u32 row = 0; row < NT; row++) {
            float sum = warp_sum(squares[row]);
            if (lane == 0) found.squares[row][warp] = sum;
            if (p.plain == 4) continue;
#pragma unroll
            for (u32 i = 0; i < MOST_PLAIN; i++) {
                sum = warp_sum(plain[row][i]);
                if (lane == 0) found.plain[row][i][warp] = sum;
            }
        }
    }
};

__device__ inline float total(const float* by_warp) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += by_warp[i];
    return sum;
}

// The last threads store the block's outputs of the F32 weight, and its share of the normed rows.
template <int NT>
__device__ inline void put_rest(const NormProducts& p, const Found<NT>& found, const float* inverse) {
    u32 mine = THREADS - 1 - threadIdx.x;
    if (p.plain < 4 && mine < NT * MOST_PLAIN) {
        u32 row = mine / MOST_PLAIN, i = mine % MOST_PLAIN, output = blockIdx.x + i * gridDim.x;
        float v = total(found.plain[row][i]) * inverse[row];
        if (row < p.rows && output < p.products[p.plain].w.rows) put(p, p.products[p.plain], row, output, v);
    }
    u32 eights = p.x.cols / 8;
    for (u32 i = mine; p.keep && i < p.rows * MOST_KEPT; i += THREADS) {
        u32 row = i / MOST_KEPT, eight = blockIdx.x + i % MOST_KEPT * gridDim.x;
        if (eight >= eights) continue;
        const float* v = found.kept[row][i % MOST_KEPT];
        uint4 out;
#pragma unroll
        for (int k = 0; k < 4; k++) (&out.x)[k] = f32_bf16x2(v[2 * k] * inverse[row], v[2 * k + 1] * inverse[row]);
        *reinterpret_cast<uint4*>(reinterpret_cast<u16*>(p.normed.data) + row * p.normed.stride + 8 * eight) = out;
    }
}

template <int NT>
__device__ inline void products(const NormProducts& p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ Found<NT> found;
    __shared__ float inverse[NT];
    release_next();
    Source source(p);
    Staging staging = {memory + WARPS * STAGES * STEP, row_pitch<16>(p.x.cols), NT};
    Sums<16, NT> sums = {reinterpret_cast<float*>(staging.bytes + NT * (staging.pitch + staging.pitch / 4)), source.count};
    float* taps = sums.of(source.count, 0);
    Windows windows = {p.conv, taps, taps + source.count * 16 * (p.conv.width + 1), source.count};
    Feed<16, Source> feed(source, memory);
    feed.prime();
    sums.clear();
    Stager<NT> stager(p, staging);
    if (p.conv.channels > 0) windows.fetch_all(p.rows);
    await_previous();
    stager.run(found);
    __syncthreads();
    if (threadIdx.x < NT) {
        float mean = total(found.squares[threadIdx.x]) / float(p.x.cols);
        inverse[threadIdx.x] = p.gain ? 1.0f / sqrtf(mean + p.eps) : 1.0f;
    }
    multiply<16, NT>(feed, staging, sums);
    for (u32 i = threadIdx.x; i < source.count * NT * 16; i += THREADS) {
        u32 place = i % (source.count * 16), row = i / (source.count * 16), tile;
        const Product& q = source.product(place / 16, tile);
        u32 output = tile * 16 + place % 16;
        if (row >= p.rows || output >= q.w.rows) continue;
        float v = sums.joined(place / 16, row, place % 16) * (inverse[row] * q.w.scale[0] * FACTOR);
        put(p, q, row, output, v);
        if (&q == p.products && output - p.conv.first < p.conv.channels) windows.convolve(row, place, bf16_f32(f32_bf16(v)));
    }
    put_rest(p, found, inverse);
}

#define FORM(NT, BLOCKS)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) norm_products_nvfp4_##NT(                          \
        const __grid_constant__ NormProducts p) {                                                            \
        products<NT>(p);                                                                                     \
    }
FORM(1, 2)
FORM(2, 1)
FORM(4, 1)
FORM(8, 1)
