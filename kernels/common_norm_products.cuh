// out_i = f_i(rms_norm(x) weight_i^T + bias_i) for up to four weights, and a convolution over columns of out_0 that moves
// each sequence on by one token; up to 4 * NT rows (common_vec.cuh).
//
// x [rows, inputs] f32, gain [inputs] f32 or null where `normed` holds the normed rows already, normed [rows, inputs] bf16,
// weights of BF16, FP8, NVFP4 or F32 with whole 16-byte pieces in a row. Every block norms the rows for itself: they
// come from the cache, while its weights come from memory. The first block leaves them in `normed`.
//
// The convolution: out = f(bias + taps . window), raw inputs rounded as out_0 stores them; conv weight [channels, width],
// state [slots * channels, width - 1], one row a sequence. Rows of no sequence move nothing.
#pragma once
#include "common_conv.cuh"
#include "common_lines.cuh"

// Twins of `Product` and `NormProducts` in norm_products.rs.
struct Product {
    Bank w;
    const float* bias;
    Window out;
    u32 function, blocks, groups, splits;
};
struct NormProducts {
    Window x, normed;
    const float* gain;
    float eps;
    u32 rows;
    Conv conv;
    Product products[4];
};

// Norms one row into its staged pieces, and into `normed` where `keep` says so.
template <int FORMAT>
__device__ inline void norm_row(const NormProducts& p, u32 row, uint4* staging, float* scratch, bool keep) {
    u32 cols = p.x.cols, pitch = row_pieces<FORMAT>(cols);
    const float4* x = reinterpret_cast<const float4*>(p.x.data) + row * p.x.stride / 4;
    const float4* gain = reinterpret_cast<const float4*>(p.gain);
    float sum = 0.0f;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < cols / 4; i += VEC_THREADS) {
        float4 v = x[i];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    float inverse = 1.0f / sqrtf(block_sum(sum, scratch) / float(cols) + p.eps);
    for (u32 piece = threadIdx.x; piece < pitch; piece += VEC_THREADS) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (8 * piece < cols) {
            float4 a = x[2 * piece], b = x[2 * piece + 1], c = gain[2 * piece], d = gain[2 * piece + 1];
            v.x = f32_bf16x2(a.x * inverse * c.x, a.y * inverse * c.y);
            v.y = f32_bf16x2(a.z * inverse * c.z, a.w * inverse * c.w);
            v.z = f32_bf16x2(b.x * inverse * d.x, b.y * inverse * d.y);
            v.w = f32_bf16x2(b.z * inverse * d.z, b.w * inverse * d.w);
            if (keep) reinterpret_cast<uint4*>(reinterpret_cast<u16*>(p.normed.data) + row * p.normed.stride)[piece] = v;
        }
        staging[row * pitch + staged<FORMAT>(piece)] = v;
    }
}

// Meets one raw input with its channel's window and moves the window on.
__device__ inline void convolve(const Conv& conv, u32 channel, u32 row, float raw) {
    RowPlace place = conv.places[row];
    if (place.slot == PADDING) return;
    float* window = reinterpret_cast<float*>(conv.state.data) +
                    (u64(place.slot) * conv.channels + channel) * conv.state.stride;
    const float* taps = conv.weight + u64(channel) * conv.width;
    u32 history = conv.width - 1;
    float before[7], sum = conv.bias ? conv.bias[channel] : 0.0f;
#pragma unroll
    for (int j = 0; j < 7; j++) {
        before[j] = j < history && place.position > 0 ? window[j] : 0.0f;
        if (j < history) sum += taps[j] * before[j];
    }
    sum += taps[history] * raw;
#pragma unroll
    for (int j = 0; j < 7; j++) {
        if (j < history) window[j] = j + 1 < history ? before[j < 6 ? j + 1 : 6] : raw;
    }
    store(conv.out, row, channel, conv.function == SILU ? silu(sum) : apply_rare(conv.function, sum));
}

struct Stage {
    const NormProducts& p;
    float* scratch;
    Groups groups;
    bool convolves;

    // Windows and taps of the block's channels, one thread each.
    __device__ inline void prefetch_windows() const {
        u32 wide = groups.outputs();
        for (u32 i = threadIdx.x; groups.first + i / wide * groups.stride < groups.end; i += VEC_THREADS) {
            u32 channel = (groups.first + i / wide * groups.stride) * wide + i % wide - p.conv.first;
            if (channel >= p.conv.channels) continue;
            prefetch(p.conv.weight + u64(channel) * p.conv.width);
            if (p.conv.bias) prefetch(p.conv.bias + channel);
            for (u32 row = 0; row < p.rows; row++) {
                u32 slot = p.conv.places[row].slot;
                if (slot == PADDING) continue;
                prefetch(reinterpret_cast<const float*>(p.conv.state.data) +
                         (u64(slot) * p.conv.channels + channel) * p.conv.state.stride);
            }
        }
    }

    template <int FORMAT>
    __device__ inline void fill(uint4* staging) const {
        if (p.gain) {
            for (u32 i = threadIdx.x * 8; i < p.x.cols; i += VEC_THREADS * 8) prefetch(p.gain + i);
        }
        if (convolves) prefetch_windows();
        await_previous();
        const u16* normed = reinterpret_cast<const u16*>(p.normed.data);
        if (!p.gain) {
            stage_rows<FORMAT>(staging, p.rows, p.x.cols, [&](u32 row) { return normed + row * p.normed.stride; });
            return;
        }
        for (u32 row = 0; row < p.rows; row++) norm_row<FORMAT>(p, row, staging, scratch, blockIdx.x == 0);
    }
};

// LINES: weights of BF16 and F32 only, up to 4 rows.
template <int NT, bool LINES>
__device__ inline void products(const NormProducts& p) {
    extern __shared__ uint4 memory[];
    __shared__ float scratch[32];
    release_next();
    u32 block = blockIdx.x, index = 0;
    while (block >= p.products[index].blocks) block -= p.products[index++].blocks;
    const Product& q = p.products[index];
    Groups groups = {block, q.blocks, q.groups, q.splits};
    Stage stage = {p, scratch, groups, index == 0 && p.conv.channels > 0};
    auto put = [&](u32 output, u32 row, float v) {
        v += q.bias ? q.bias[output] : 0.0f;
        if (q.function != IDENTITY) v = apply_rare(q.function, v);
        store(q.out, row, output, v);
        u32 channel = output - p.conv.first;
        if (index == 0 && channel < p.conv.channels) convolve(p.conv, channel, row, bf16_f32(f32_bf16(v)));
    };
    if (q.w.format == W_F32) return product_lines<W_F32, NT>(q.w, groups, p.rows, memory, stage, put);
    if constexpr (LINES) {
        product_lines<W_BF16, NT>(q.w, groups, p.rows, memory, stage, put);
    } else {
        __shared__ alignas(16) char ring[VEC_RING];
        __shared__ float partial[2 * VEC_WARPS * NT * 32];
        product_any<NT>(q.w, 0, groups, p.rows, memory, ring, partial, stage, put);
    }
}

// A file a form: the compiler takes seconds for each.
#define FORM(NT, BLOCKS)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) norm_products_##NT(const __grid_constant__ NormProducts p) { \
        products<NT, false>(p);                                                                                      \
    }
