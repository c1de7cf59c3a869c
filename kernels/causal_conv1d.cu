// out[t, c] = f(bias[c] + sum_j weight[c, j] * x[t - W + 1 + j, c]), the last tap meeting the current token; inputs before
// the segment come from the slot's window, or are zero where the segment is fresh. W = width.
//
// x, out [rows, channels] of any float dtype, weight [channels, W] f32, bias [channels] f32 or null,
// state [slots * channels, W - 1] f32 (raw inputs, oldest first), table [segments], places [rows]. f32 sums.
//
// causal_conv1d_short: one thread takes one channel of one segment, window in registers, and shifts the state.
// causal_conv1d_long: one thread takes one channel, or with bf16 a pair of them, of `run` rows, whichever segments they belong
// to; it only reads the state, which causal_conv1d_state shifts afterwards.
// W is 4 or 8, the room for a width of as many taps or fewer: a window's last `width - 1` places are used.
#include "common.cuh"

constexpr int AHEAD = 8;  // inputs loaded before the first is used

// Twin of `Conv` in causal_conv1d.rs.
struct Conv {
    Window x;
    const float* weight;
    const float* bias;
    u32 function, width, rows, run;
    Window state;
    const Segment* table;
    const RowPlace* places;
    Window out;
};

// N neighbouring channels of a row.
template <class A, int N>
struct alignas(N * sizeof(A)) Channels {
    A value[N];
};
template <class A, int N>
__device__ inline Channels<A, N>& channels(const Window& w, u32 row, u32 c) {
    return *reinterpret_cast<Channels<A, N>*>(reinterpret_cast<A*>(w.data) + row * w.stride + c);
}

template <class A>
__device__ inline float input(const Conv& p, u32 row, u32 c) {
    return widen(channels<A, 1>(p.x, row, c).value[0]);
}

// The window before row `index` of a segment whose row 0 is row `first` of x.
template <class A, int W>
__device__ inline void fill_window(float* window, const Conv& p, u32 c, u32 slot, bool fresh, u32 first, u32 index) {
    const float* state = reinterpret_cast<const float*>(p.state.data) + (u64(slot) * p.x.cols + c) * p.state.stride;
    int history = p.width - 1;
#pragma unroll
    for (int j = 0; j < W - 1; j++) {
        int back = W - 1 - j, from = int(index) - back;
        window[j] = 0.0f;
        if (back > history) continue;
        if (from >= 0) window[j] = input<A>(p, first + from, c);
        else if (!fresh) window[j] = state[history + from];
    }
}

template <class A, int W>
struct Taps {
    float weight[W], bias;

    __device__ inline void read(const Conv& p, u32 c) {
        bias = p.bias ? p.bias[c] : 0.0f;
#pragma unroll
        for (int j = 0; j < W; j++) {
            int tap = j - (W - int(p.width));
            weight[j] = tap >= 0 ? p.weight[u64(c) * p.width + tap] : 0.0f;
        }
    }

    // The output of one input that meets the window, which moves on.
    __device__ inline float step(const Conv& p, float* window, float current) const {
        float sum = bias + weight[W - 1] * current;
#pragma unroll
        for (int j = 0; j < W - 1; j++) {
            if (W - 1 - j < int(p.width)) sum += weight[j] * window[j];
        }
#pragma unroll
        for (int j = 0; j < W - 2; j++) window[j] = window[j + 1];
        window[W - 2] = current;
        if (p.function != SILU) return apply_rare(p.function, sum);
        return sizeof(A) == 2 ? quick_silu(sum) : silu(sum);
    }
};

template <int W>
__device__ inline void store_state(const Conv& p, const float* window, u32 c, u32 slot) {
    float* state = reinterpret_cast<float*>(p.state.data) + (u64(slot) * p.x.cols + c) * p.state.stride;
    int unused = W - int(p.width);
#pragma unroll
    for (int j = 0; j < W - 1; j++) {
        if (j >= unused) state[j - unused] = window[j];
    }
}

template <class A, int W>
__device__ inline void short_form(const Conv& p) {
    release_next();
    await_previous();
    Segment s = p.table[blockIdx.y];
    u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (s.len == 0 || c >= p.x.cols) return;
    float window[W - 1];
    Taps<A, W> taps;
    taps.read(p, c);
    fill_window<A, W>(window, p, c, s.slot, s.position == 0, s.first_row, 0);
    for (u32 row = s.first_row; row < s.first_row + s.len; row++) {
        narrow(channels<A, 1>(p.out, row, c).value[0], taps.step(p, window, input<A>(p, row, c)));
    }
    store_state<W>(p, window, c, s.slot);
}

template <class A, int W, int N>
__device__ inline void long_form(const Conv& p) {
    release_next();
    u32 c = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= p.x.cols) return;
    float window[N][W - 1];
    Taps<A, W> taps[N];
#pragma unroll
    for (int n = 0; n < N; n++) taps[n].read(p, c + n);
    await_previous();
    u32 begin = blockIdx.y * p.run, end = min(begin + p.run, p.rows);
    for (u32 row = begin; row < end; row += AHEAD) {
        Channels<A, N> ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ahead[i] = channels<A, N>(p.x, min(row + i, end - 1), c);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (row + i >= end) break;
            RowPlace place = p.places[row + i];
            if (place.slot == PADDING) continue;
            bool fill = place.index == 0 || row + i == begin;
            Channels<A, N> out;
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (fill) {
                    fill_window<A, W>(window[n], p, c + n, place.slot, place.position == place.index, row + i - place.index,
                                      place.index);
                }
                narrow(out.value[n], taps[n].step(p, window[n], widen(ahead[i].value[n])));
            }
            channels<A, N>(p.out, row + i, c) = out;
        }
    }
}

template <class A, int W>
__device__ inline void shift_state(const Conv& p) {
    release_next();
    await_previous();
    Segment s = p.table[blockIdx.y];
    u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (s.len == 0 || c >= p.x.cols) return;
    float window[W - 1];
    fill_window<A, W>(window, p, c, s.slot, s.position == 0, s.first_row, s.len);
    store_state<W>(p, window, c, s.slot);
}

#define FORM(NAME, BODY) \
    extern "C" __global__ void __launch_bounds__(128) causal_conv1d_##NAME(const __grid_constant__ Conv p) { BODY(p); }
#define FORMS(NAME, A, W)                             \
    FORM(short_##NAME##_##W, (short_form<A, W>))      \
    FORM(long_##NAME##_##W##_1, (long_form<A, W, 1>)) \
    FORM(state_##NAME##_##W, (shift_state<A, W>))
FORMS(f32, float, 4)
FORMS(f32, float, 8)
FORMS(bf16, u16, 4)
FORMS(bf16, u16, 8)
FORM(long_bf16_4_2, (long_form<u16, 4, 2>))
FORM(long_bf16_8_2, (long_form<u16, 8, 2>))
