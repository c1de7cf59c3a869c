// A phase of products with one row.
#pragma once
#include "common_program_stage.cuh"

// Meets the oldest step of the ring with x staged at `offset`: common_nvfp4.cuh has the arithmetic.
template <u32 FORMAT>
struct Meter {
    Tables tables;
    Reader x;
    float sum = 0.0f;
    __device__ inline explicit Meter(const Desk& desk) : x(desk.integers) {}
    __device__ inline void step(Ring& ring, u32 offset) {
        uint4 codes[2];
        u32 blocks[2];
        ring.take<FORMAT>(codes, blocks);
        meet<OUTPUTS, 1>(tables, codes, blocks, x, offset, 0, reinterpret_cast<float(*)[1]>(&sum));
    }
    // The four lanes of an output have parts of its sum.
    __device__ inline float take() {
        float all = sum + __shfl_xor_sync(ALL, sum, 1);
        all += __shfl_xor_sync(ALL, all, 2);
        sum = 0.0f;
        return all;
    }
};

// Pieces t and t + 4 of an output are rows g and g + 8 of A, x at those pieces is columns 0 and 1 of B: so lane t = 0 has
// both sums, in the first and the last of its four.
template <>
struct Meter<W_BF16> {
    Reader x;
    u32 row;
    float d[4] = {};
    __device__ inline explicit Meter(const Desk& desk)
        : x(desk.integers), row(shared_address(desk.bytes) + threadIdx.x % 4 * 16 + threadIdx.x % 32 / 4 * 64) {
        x.own = threadIdx.x % 32 < 8;
    }
    __device__ inline void step(Ring& ring, u32 offset) {
        uint4 codes[2];
        u32 blocks[2];
        ring.take<W_BF16>(codes, blocks);
        uint4 b = x.at(row + offset);
#pragma unroll
        for (int q = 0; q < 2; q++) {
            const u32 *low = &codes[0].x + 2 * q, *high = &codes[1].x + 2 * q;
            u32 a[4] = {low[0], high[0], low[1], high[1]};
            mma(d, a, (&b.x)[2 * q], (&b.x)[2 * q + 1]);
        }
    }
    __device__ inline float take() {
        float all = d[0] + d[3];
#pragma unroll
        for (int i = 0; i < 4; i++) d[i] = 0.0f;
        return all;
    }
};

// Sums by [WARPS, most runs of a warp, OUTPUTS].
struct Partial {
    float* data;
    u32 pitch;  // floats of a warp
    __device__ inline Partial(const Products& p, const Share& share, char* area)
        : data(reinterpret_cast<float*>(area + p.sums_place)), pitch((over(share.steps, p.length) + 2) * OUTPUTS) {}
    __device__ inline float* of(u32 warp, u32 run) const { return data + warp * pitch + run * OUTPUTS; }
};

template <u32 FORMAT>
__device__ inline void multiply(const Products& p, const Share& share, const Desk& desk, const Partial& partial, Ring& ring,
                                const Kept& kept, u32 now) {
    // Steps that add up before they are weighed.
    u32 lane = threadIdx.x % 32, whole = FORMAT == W_NVFP4 || !p.chained ? p.length : p.steps;
    constexpr u32 SPAN = span_of(FORMAT);
    u32 within = share.first - over(share.first, p.length) * p.length;
    float* out = partial.of(threadIdx.x / 32, 0) + lane / 4;
    float total = 0.0f;
    Meter<FORMAT> meter(desk);
#pragma unroll 1
    for (u32 left = share.last - share.first; left > 0;) {
        u32 part = over(within, whole), steps = min((part + 1) * whole - within, left), offset = within * SPAN;
        float factor = FORMAT != W_NVFP4 && p.chained ? kept.factor[min(part, p.chained)] : 1.0f;
        within += steps, left -= steps;
#pragma unroll 1
        for (; steps > 0; steps--, offset += SPAN) {
            meter.step(ring, offset);
            __syncwarp();
            ring.next(now);
        }
        total += factor * meter.take();
        if (left > 0 && within < p.length) continue;
        if (lane % 4 == 0) *out = total;
        out += OUTPUTS;
        total = 0.0f;
        within = 0;
    }
}

// One output of the block, as its thread knows it before its sum is there.
struct Output {
    const Unit* unit;
    char* to;  // where it goes, F32 or bf16
    u32 function;
    float scale, bias, before;
    const float* sums;  // of the first warp of its tile; the others have theirs in their first runs
    const float* others;
    u32 more;
    bool there, wide;
    bool plain = false;  // the F32 unit's

    __device__ inline void target(const Products& p, u32 of, u32 row, u32 output) {
        unit = &p.unit[of];
        const Window& out = unit->out;
        function = unit->function;
        wide = out.dtype == F32;
        to = reinterpret_cast<char*>(out.data) + ((row * out.stride + output) << (wide ? 2 : 1));
        if (unit->bias) bias = unit->bias[output];
    }
    __device__ inline void turn(const Products& p, const Kept& kept, const Share& share, const Partial& partial, u32 item) {
        u32 index = item / OUTPUTS, column = item % OUTPUTS;
        Place place(p, index);
        u32 output = place.tile * OUTPUTS + column;
        const Unit& of = p.unit[place.unit];
        bias = 0.0f;
        there = output < of.w.rows;
        if (!there) return;
        target(p, place.unit, place.copy, output);
        // Those of a chain have met x. It is on its way and must not be waited for here.
        if (!p.chained) scale = of.w.scale[place.matrix(p, kept)];
        u32 begin = index * p.length, first = over(begin, share.steps);
        sums = partial.of(first, index - over(first * share.steps, p.length)) + column;
        others = partial.of(first + 1, 0) + column;
        more = over(begin + p.length - 1, share.steps) - first;
    }
    __device__ inline Output(const Products& p, const Kept& kept, const Share& share, const Partial& partial, u32 item, bool known)
        : unit(nullptr), to(nullptr), function(0), scale(1.0f), bias(0.0f), before(0.0f), sums(nullptr), others(nullptr), more(0),
          there(false), wide(false) {
        if (known) turn(p, kept, share, partial, item);
    }
    __device__ inline void turn_plain(const Products& p) {
        plain = there = true;
        target(p, p.plain, 0, blockIdx.x);
    }
    __device__ inline void fetch(const Products& p) {
        if (!there || !p.how.accumulate) return;
        before = wide ? *reinterpret_cast<const float*>(to) : bf16_f32(*reinterpret_cast<const u16*>(to));
    }
    __device__ inline float sum(u32 pitch) const {
        float sum = *sums;
#pragma unroll 2
        for (u32 i = 0; i < more; i++) sum += others[i * pitch];
        return sum;
    }
    __device__ inline void put(float v) const {
        if (wide) *reinterpret_cast<float*>(to) = v;
        else *reinterpret_cast<u16*>(to) = f32_bf16(v);
    }
};

// F32 or bf16.
__device__ inline void put(const Window& out, u32 row, u32 col, float v) {
    u64 i = row * out.stride + col;
    if (out.dtype == F32) reinterpret_cast<float*>(out.data)[i] = v;
    else reinterpret_cast<u16*>(out.data)[i] = f32_bf16(v);
}

// The convolution's taps, biases and windows, of the block's outputs: [outputs, width + 1], then [outputs, width - 1].
struct Columns {
    const Conv& conv;
    float* taps;
    float* past;
    u32 outputs;

    __device__ inline Columns(const Products& p, char* area, u32 items)
        : conv(p.conv), taps(reinterpret_cast<float*>(area + p.extra_place)), past(taps + items * (p.conv.width + 1)),
          outputs(items) {}
    __device__ inline u32 channel(u32 item) const {
        return (blockIdx.x + item / OUTPUTS * gridDim.x) * OUTPUTS + item % OUTPUTS - conv.first;
    }
    __device__ inline float* window(u32 slot, u32 channel) const {
        return reinterpret_cast<float*>(conv.state.data) + (u64(slot) * conv.channels + channel) * conv.state.stride;
    }

    // Its i-th value: no kernel of this step has written it.
    __device__ inline float value(const RowPlace& place, u32 i) const {
        u32 width = conv.width, item = over(i, 2 * width), j = i - item * 2 * width, of = channel(item);
        if (item >= outputs || of >= conv.channels) return 0.0f;
        if (j < width) return conv.weight[u64(of) * width + j];
        if (j == width) return conv.bias ? conv.bias[of] : 0.0f;
        return place.slot != PADDING && place.position > 0 ? window(place.slot, of)[j - width - 1] : 0.0f;
    }
    __device__ inline void keep(u32 i, float v) const {
        u32 width = conv.width, item = over(i, 2 * width), j = i - item * 2 * width;
        if (item >= outputs) return;
        if (j <= width) taps[item * (width + 1) + j] = v;
        else past[item * (width - 1) + j - width - 1] = v;
    }
    __device__ inline u32 values() const { return conv.channels > 0 ? outputs * 2 * conv.width : 0; }

    // Two values a thread, the first of all.
    __device__ inline float2 first_values(const RowPlace& place) const {
        if (threadIdx.x >= values()) return make_float2(0.0f, 0.0f);
        return make_float2(value(place, threadIdx.x), value(place, threadIdx.x + THREADS));
    }
    __device__ inline void keep_all(const RowPlace& place, float2 two) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < values(); i += 2 * THREADS) {
            if (i >= THREADS) two = make_float2(value(place, i), value(place, i + THREADS));
            keep(i, two.x);
            keep(i + THREADS, two.y);
        }
    }

    // Meets one raw input with its channel's window and moves the window on.
    __device__ inline void convolve(const RowPlace& place, u32 item, float raw) const {
        u32 of = channel(item), history = conv.width - 1;
        if (of >= conv.channels || place.slot == PADDING) return;
        const float* before = past + item * history;
        const float* tap = taps + item * (conv.width + 1);
        float* to = window(place.slot, of);
        float sum = tap[history + 1] + tap[history] * raw;
#pragma unroll 1
        for (u32 j = 0; j < history; j++) {
            sum += tap[j] * before[j];
            to[j] = j + 1 < history ? before[j + 1] : raw;
        }
        put(conv.out, 0, of, apply_rare(conv.function, sum));
    }
};

__device__ inline float apply_often(u32 function, float v) {
    if (function == RELU2) return fmaxf(v, 0.0f) * fmaxf(v, 0.0f);
    return function == 0 ? v : apply_rare(function, v);
}

__device__ inline void finish(const Products& p, const Kept& kept, const Columns& columns, const Output& output, u32 item,
                              float inverse, float v) {
    if (!output.there) return;
    v = apply_often(output.function, v * inverse * output.scale + output.bias);
    output.put(p.how.accumulate ? output.before + p.how.scale * v : v);
    if (output.unit == p.unit && p.conv.channels > 0) columns.convolve(kept.place, item, bf16_f32(f32_bf16(v)));
}

__device__ inline float total(const float* by_warp) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS / 4; i++) {
        float4 four = reinterpret_cast<const float4*>(by_warp)[i];
        sum += four.x + four.y + (four.z + four.w);
    }
    return sum;
}

// The norm's factor, for every thread.
__device__ inline float norm_inverse(const Products& p, const Kept& kept) {
    return rsqrtf(total(kept.squares) / float(p.x.cols) + p.eps);
}

// `before` is the phase before this one, if any.
__device__ inline void run_products(const Phase& phase, const Phase* before, u32 now, const Meeting& meeting, Ring& ring,
                                    Kept& kept, char* area) {
    const Products& p = phase.products;
    Share share(p);
    Norm norm(p);
    Gated gated(p, !before || before->kind == SCAN);
    Desk desk(p, area);
    Partial partial(p, share, area);
    // The last warps, which have fewest steps, end the first outputs; the F32 unit's is the first thread's.
    u32 items = share.tiles * OUTPUTS, item = THREADS - 1 - threadIdx.x;
    Columns columns(p, area, items);
    Output mine(p, kept, share, partial, item, item < items);
    if (norm.has_plain() && item == THREADS - 1) mine.turn_plain(p);
    weigh_chain(p, kept);
    float2 two = columns.first_values(kept.place);
    if (phase.meet) meeting.wait();
    mine.fetch(p);
    if (p.staged == NORM) norm.stage(desk, kept);
    else if (p.staged == GATED) gated.stage(desk, kept.squares);
    else if (p.staged == ROWS) stage_rows(p, desk, kept);
    columns.keep_all(kept.place, two);
    // What has been staged before needs no barrier.
    if (p.staged != AGAIN) __syncthreads();
    float inverse = 1.0f;
    if (p.staged == NORM) {
        inverse = norm_inverse(p, kept);
        norm.keep(inverse);
        if (threadIdx.x == 0) kept.inverse = inverse;
    } else if (p.staged == AGAIN) {
        inverse = kept.inverse;
    }
    if (p.format == W_NVFP4) multiply<W_NVFP4>(p, share, desk, partial, ring, kept, now);
    else multiply<W_BF16>(p, share, desk, partial, ring, kept, now);
    __syncthreads();
    float unit = p.format == W_NVFP4 ? FACTOR : 1.0f;
#pragma unroll 1
    for (u32 i = item; i < items || i == THREADS - 1; i += THREADS) {
        if (i >= THREADS) mine.turn(p, kept, share, partial, i), mine.fetch(p);
        float v = mine.plain ? total(kept.plain) : mine.there ? unit * mine.sum(partial.pitch) : 0.0f;
        finish(p, kept, columns, mine, i, inverse, v);
    }
}
