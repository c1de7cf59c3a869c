// out[t, c] = f(bias[c] + sum_j weight[c, j] * x[t - W + 1 + j, c]), the last tap meeting the current token; inputs before
// the segment come from the slot's window, or are zero where the segment is fresh. W = width.
//
// x, out [rows, channels] of any float dtype, weight [channels, W] f32, bias [channels] f32 or null,
// state [slots * channels, W - 1] f32 (raw inputs, oldest first), table [segments], places [rows]. f32 sums.
//
// causal_conv1d_short: one thread takes one channel of one segment, window in registers, and shifts the state.
// causal_conv1d_long: one thread takes one channel of ROWS rows, whichever segments they belong to; it only reads the
// state, which causal_conv1d_state shifts afterwards.
// W is 4 or 8, the room for a width of as many taps or fewer: a window's last `width - 1` places are used.
#include "common.cuh"

constexpr int ROWS = 32;  // rows of a thread in the long form
constexpr int AHEAD = 8;  // inputs loaded before the first is used

// Twin of `Conv` in causal_conv1d.rs.
struct Conv {
    Window x;
    const float* weight;
    const float* bias;
    u32 function, width, rows, unused;
    Window state;
    const Segment* table;
    const RowPlace* places;
    Window out;
};

template <class A>
__device__ inline float input(const Conv& p, u32 row, u32 c) {
    return widen(reinterpret_cast<const A*>(p.x.data)[row * p.x.stride + c]);
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

    __device__ inline Taps(const Conv& p, u32 c) : bias(p.bias ? p.bias[c] : 0.0f) {
#pragma unroll
        for (int j = 0; j < W; j++) {
            int tap = j - (W - int(p.width));
            weight[j] = tap >= 0 ? p.weight[u64(c) * p.width + tap] : 0.0f;
        }
    }

    // Meets one input with the window and moves it on.
    __device__ inline void step(const Conv& p, float* window, float current, u32 row, u32 c) const {
        float sum = bias + weight[W - 1] * current;
#pragma unroll
        for (int j = 0; j < W - 1; j++) {
            if (W - 1 - j < int(p.width)) sum += weight[j] * window[j];
        }
#pragma unroll
        for (int j = 0; j < W - 2; j++) window[j] = window[j + 1];
        window[W - 2] = current;
        narrow(reinterpret_cast<A*>(p.out.data)[row * p.out.stride + c],
               p.function == SILU ? silu(sum) : apply_rare(p.function, sum));
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
    Taps<A, W> taps(p, c);
    fill_window<A, W>(window, p, c, s.slot, s.position == 0, s.first_row, 0);
    for (u32 row = s.first_row; row < s.first_row + s.len; row++) taps.step(p, window, input<A>(p, row, c), row, c);
    store_state<W>(p, window, c, s.slot);
}

template <class A, int W>
__device__ inline void long_form(const Conv& p) {
    release_next();
    await_previous();
    u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.x.cols) return;
    float window[W - 1];
    Taps<A, W> taps(p, c);
    u32 begin = blockIdx.y * ROWS, end = min(begin + ROWS, p.rows);
    for (u32 row = begin; row < end; row += AHEAD) {
        float ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ahead[i] = row + i < end ? input<A>(p, row + i, c) : 0.0f;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (row + i >= end) break;
            RowPlace place = p.places[row + i];
            if (place.slot == PADDING) continue;
            if (place.index == 0 || row + i == begin) {
                fill_window<A, W>(window, p, c, place.slot, place.position == place.index, row + i - place.index,
                                  place.index);
            }
            taps.step(p, window, ahead[i], row + i, c);
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

#define FORMS(NAME, A, W)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) causal_conv1d_short_##NAME##_##W(Conv p) {               \
        short_form<A, W>(p);                                                                                   \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(128) causal_conv1d_long_##NAME##_##W(Conv p) {                \
        long_form<A, W>(p);                                                                                    \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(128) causal_conv1d_state_##NAME##_##W(Conv p) {               \
        shift_state<A, W>(p);                                                                                  \
    }
FORMS(f32, float, 4)
FORMS(f32, float, 8)
FORMS(bf16, u16, 4)
FORMS(bf16, u16, 8)
