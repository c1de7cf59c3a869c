// Mamba2's recurrence, one state a head (Dao and Gu 2024, section 7); P = head_dim, N = state, T = tokens.
//
//   dt = clamp(softplus(dt + dt_bias), limits)     a = exp(-exp(A_log) * dt)
//   S <- a * S + dt * x B^T                        y = S C + D * x
//
// x, out [rows, heads * P], b, c [rows, groups * N], dt [rows, heads], all f32 or all bf16; params [3, heads] f32: A_log,
// D, dt_bias; state [slots * heads * P, N] f32 or bf16, rounded once a segment; table
// [segments]. Everything is computed in f32.
//
// One block of 4 warps scans ROWS rows of S of one head of one segment (blockIdx.x = head * tiles + tile, blockIdx.y =
// segment). A row is dealt in turn, 16 bytes at a time, over L adjacent lanes, so that state moves in whole lines; a lane
// holds E elements of R rows in registers from the first token to the last. B, C, dt and x of the next T tokens are on
// their way while the present ones run. The sums over lanes are shared: each exchange halves the values that a lane
// still adds up. Elements past N and rows past P are zero throughout. Limits: N <= E * L.
#pragma once
#include "common_scan.cuh"

template <class A>
struct alignas(4 * sizeof(A)) Four {
    A v[4];
};

template <class A>
__device__ inline A at(const Window& w, u64 row, u32 col) {
    return reinterpret_cast<const A*>(w.data)[row * w.stride + col];
}

// Where the block's head begins in the state of a slot.
__device__ inline u64 states_of(const Scan& p, u32 slot) {
    return (u64(slot) * p.heads + blockIdx.x / p.tiles) * p.head_dim * p.state.stride;
}

// Elements 4 * piece .. of a row of N; zero past the end.
__device__ inline float4 load_piece(const float* row, u32 i, u32 n, bool whole) {
    if (whole) return i < n ? *reinterpret_cast<const float4*>(row + i) : make_float4(0, 0, 0, 0);
    auto one = [&](u32 col) { return col < n ? row[col] : 0.0f; };
    return make_float4(one(i), one(i + 1), one(i + 2), one(i + 3));
}

__device__ inline float4 load_piece(const u16* row, u32 i, u32 n, bool whole) {
    if (whole) return i < n ? widen_four(*reinterpret_cast<const uint2*>(row + i)) : make_float4(0, 0, 0, 0);
    auto one = [&](u32 col) { return col < n ? bf16_f32(row[col]) : 0.0f; };
    return make_float4(one(i), one(i + 1), one(i + 2), one(i + 3));
}

__device__ inline void store_four(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }

__device__ inline void store_four(u16* to, float4 v) {
    *reinterpret_cast<uint2*>(to) = make_uint2(f32_bf16x2(v.x, v.y), f32_bf16x2(v.z, v.w));
}

template <class S>
__device__ inline void store_piece(S* row, u32 i, u32 n, bool whole, float4 v) {
    if (whole) {
        if (i < n) store_four(row + i, v);
        return;
    }
    if (i < n) narrow(row[i], v.x);
    if (i + 1 < n) narrow(row[i + 1], v.y);
    if (i + 2 < n) narrow(row[i + 2], v.z);
    if (i + 3 < n) narrow(row[i + 3], v.w);
}

// A lane's part of R rows of the state, in the order of the header; S is how the state is kept.
template <class S, int E, int L, int R>
__device__ inline void load_rows(const Scan& p, Segment segment, u32 first, u32 lane, bool whole, float4 (*s)[E / 4]) {
    const S* states = reinterpret_cast<const S*>(p.state.data) + states_of(p, segment.slot);
#pragma unroll
    for (int r = 0; r < R; r++) {
        u32 row = first + r;
#pragma unroll
        for (int e = 0; e < E / 4; e++) {
            s[r][e] = make_float4(0, 0, 0, 0);
            if (segment.position > 0 && row < p.head_dim) {
                s[r][e] = load_piece(states + row * p.state.stride, 4 * (lane + L * e), p.state_size, whole);
            }
        }
    }
}

template <class S, int E, int L, int R>
__device__ inline void store_rows(const Scan& p, u32 slot, u32 first, u32 lane, bool whole, float4 (*s)[E / 4]) {
    S* states = reinterpret_cast<S*>(p.state.data) + states_of(p, slot);
#pragma unroll
    for (int r = 0; r < R; r++) {
        u32 row = first + r;
        if (row >= p.head_dim) break;
#pragma unroll
        for (int e = 0; e < E / 4; e++) {
            store_piece(states + row * p.state.stride, 4 * (lane + L * e), p.state_size, whole, s[r][e]);
        }
    }
}

// Adds `v` up over L lanes. Afterwards this lane holds the sums of values first .. first + count - 1 in v[0 ..].
template <int V, int L>
__device__ inline void share_sums(float* v, u32 lane, u32& first, int& count) {
    first = 0;
    count = V;
#pragma unroll
    for (int lanes = L / 2; lanes > 0; lanes /= 2) {
        if (count == 1) {
            v[0] += __shfl_xor_sync(ALL, v[0], lanes);
            continue;
        }
        count /= 2;
        bool upper = lane & lanes;
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            if (i >= count) break;
            float sent = upper ? v[i] : v[i + count], kept = upper ? v[i + count] : v[i];
            v[i] = kept + __shfl_xor_sync(ALL, sent, lanes);
        }
        if (upper) first += count;
    }
}

template <class A, int E, int L, int R, int T>
__device__ inline void scan(const Scan& p) {
    constexpr int WIDTH = E * L, THREADS = 128, ROWS = 4 * (32 / L) * R, BATCH = T < 4 ? T : 4;
    constexpr int PIECES = T * 2 * WIDTH / 4, TURNS = (PIECES + THREADS - 1) / THREADS;
    constexpr int INPUTS = (T * ROWS + THREADS - 1) / THREADS, SIDES = E <= 16 && BATCH > 1 ? 2 : 1;
    extern __shared__ float4 memory[];
    // B and C of two chunks, [2][T][2][WIDTH], then
    float* xs = reinterpret_cast<float*>(memory + 2 * PIECES);  // [2][T][ROWS]
    float* ys = xs + 2 * T * ROWS;                              // [2][T][ROWS]
    float* steps = ys + 2 * T * ROWS;                           // [2][T][2]: dt, a

    Segment segment = p.table[blockIdx.y];
    if (segment.len == 0) return;
    u32 head = blockIdx.x / p.tiles, first_row = blockIdx.x % p.tiles * ROWS, n = p.state_size;
    u32 groups = p.b.cols / n, group = head / (p.heads / groups);
    u32 lane = threadIdx.x % L, line = threadIdx.x / L * R;
    float a_log = -expf(p.params[head]), skip = p.params[p.heads + head], bias = p.params[2 * p.heads + head];
    bool whole = n % 4 == 0 && p.state.stride % 4 == 0;
    float4 s[R][E / 4];
    if (p.state.dtype == F32) load_rows<float, E, L, R>(p, segment, first_row + line, lane, whole, s);
    else load_rows<u16, E, L, R>(p, segment, first_row + line, lane, whole, s);

    constexpr u32 FOUR = sizeof(Four<A>);
    bool fours = n % 4 == 0 && p.b.stride % 4 == 0 && p.c.stride % 4 == 0 && reinterpret_cast<u64>(p.b.data) % FOUR == 0 &&
                 reinterpret_cast<u64>(p.c.data) % FOUR == 0;
    Four<A> pairs[TURNS];
    A inputs[INPUTS], step;
    auto fetch = [&](u32 token) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            u32 piece = i * THREADS + threadIdx.x, t = token + piece / (WIDTH / 2), col = piece % (WIDTH / 4) * 4;
            const Window& w = piece / (WIDTH / 4) % 2 ? p.c : p.b;
            pairs[i] = Four<A>();
            if (piece >= PIECES || t >= segment.len || col >= n) continue;
            const A* from = reinterpret_cast<const A*>(w.data) + (segment.first_row + t) * w.stride + group * n + col;
            if (fours) {
                pairs[i] = *reinterpret_cast<const Four<A>*>(from);
                continue;
            }
#pragma unroll
            for (int k = 0; k < 4; k++) pairs[i].v[k] = col + k < n ? from[k] : A(0);
        }
#pragma unroll
        for (int i = 0; i < INPUTS; i++) {
            u32 place = i * THREADS + threadIdx.x, t = token + place / ROWS, row = first_row + place % ROWS;
            inputs[i] = A(0);
            if (place < T * ROWS && t < segment.len && row < p.head_dim) {
                inputs[i] = at<A>(p.x, segment.first_row + t, head * p.head_dim + row);
            }
        }
        u32 t = token + threadIdx.x;
        step = threadIdx.x < T && t < segment.len ? at<A>(p.dt, segment.first_row + t, head) : A(0);
    };
    auto stash = [&](u32 token, u32 side) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            u32 piece = i * THREADS + threadIdx.x;
            const A* v = pairs[i].v;
            if (piece < PIECES) {
                memory[side * PIECES + piece] = make_float4(widen(v[0]), widen(v[1]), widen(v[2]), widen(v[3]));
            }
        }
#pragma unroll
        for (int i = 0; i < INPUTS; i++) {
            u32 place = i * THREADS + threadIdx.x;
            if (place < T * ROWS) xs[side * T * ROWS + place] = widen(inputs[i]);
        }
        if (threadIdx.x < T) {
            // A token past the end leaves the state as it is.
            float dt = fminf(fmaxf(softplus(widen(step) + bias), p.low), p.high);
            if (token + threadIdx.x >= segment.len) dt = 0.0f;
            steps[(side * T + threadIdx.x) * 2] = dt;
            steps[(side * T + threadIdx.x) * 2 + 1] = expf(a_log * dt);
        }
    };

    fetch(0);
    stash(0, 0);
    __syncthreads();
    for (u32 token = 0, side = 0; token < segment.len; token += T, side ^= 1) {
        bool more = token + T < segment.len;
        if (more) fetch(token + T);
        for (u32 from = 0; from < T && token + from < segment.len; from += BATCH) {
            // B and C of the next token are on their way from shared memory while the present one runs.
            float y[BATCH * R];
            float4 vb[SIDES][E / 4], vc[SIDES][E / 4];
            auto read = [&](int t) {
                const float4* b = memory + (side * T + from + t) * (WIDTH / 2) + lane;
#pragma unroll
                for (int e = 0; e < E / 4; e++) {
                    vb[t % SIDES][e] = b[L * e];
                    vc[t % SIDES][e] = b[WIDTH / 4 + L * e];
                }
            };
            read(0);
#pragma unroll
            for (int t = 0; t < BATCH; t++) {
                u32 at_t = side * T + from + t;
                float dt = steps[at_t * 2], a = steps[at_t * 2 + 1], u[R];
#pragma unroll
                for (int r = 0; r < R; r++) {
                    u[r] = dt * xs[at_t * ROWS + line + r];
                    y[t * R + r] = 0.0f;
                }
                if (SIDES == 2 && t + 1 < BATCH) read(t + 1);
#pragma unroll
                for (int e = 0; e < E / 4; e++) {
                    float4 b = vb[t % SIDES][e], c = vc[t % SIDES][e];
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        float4& v = s[r][e];
                        v.x = fmaf(a, v.x, u[r] * b.x);
                        v.y = fmaf(a, v.y, u[r] * b.y);
                        v.z = fmaf(a, v.z, u[r] * b.z);
                        v.w = fmaf(a, v.w, u[r] * b.w);
                        float sum = fmaf(v.x, c.x, v.y * c.y);
                        y[t * R + r] += fmaf(v.z, c.z, fmaf(v.w, c.w, sum));
                    }
                }
                if (SIDES == 1 && t + 1 < BATCH) read(t + 1);
            }
            u32 first;
            int count;
            share_sums<BATCH * R, L>(y, lane, first, count);
#pragma unroll
            for (int i = 0; i < BATCH * R; i++) {
                if (i >= count) break;
                u32 place = (side * T + from + (first + i) / R) * ROWS + line + (first + i) % R;
                ys[place] = y[i] + skip * xs[place];
            }
        }
        if (more) stash(token + T, side ^ 1);
        __syncthreads();
        for (u32 place = threadIdx.x; place < T * ROWS; place += THREADS) {
            u32 t = token + place / ROWS, row = first_row + place % ROWS;
            if (t >= segment.len || row >= p.head_dim) continue;
            A* out = reinterpret_cast<A*>(p.out.data) + (segment.first_row + t) * p.out.stride;
            narrow(out[head * p.head_dim + row], ys[side * T * ROWS + place]);
        }
    }
    // Asked for again: kept from the start, these would take registers that the tokens need; a form that has them to spare
    // keeps the last.
    u32 slot = *const_cast<const volatile u32*>(&p.table[blockIdx.y].slot);
    u32 size = p.state_size;
    asm volatile("" : "+r"(size));
    if (L == 2 || L == 32) whole = size % 4 == 0 && p.state.stride % 4 == 0;
    if (p.state.dtype == F32) store_rows<float, E, L, R>(p, slot, first_row + line, lane, whole, s);
    else store_rows<u16, E, L, R>(p, slot, first_row + line, lane, whole, s);
}

// Names: dtype, lanes a row, elements a lane, rows a lane, tokens a chunk; the host's table is the twin of this list. Forms of
// up to 8 lanes and the others have a file a dtype each: the compiler takes seconds for every form.
#define FORM(NAME, A, L, E, R, T)                                                                                \
    extern "C" __global__ void __launch_bounds__(128) ssm_scan_##NAME##_##L##_##E##_##R##_##T(Scan p) {          \
        scan<A, E, L, R, T>(p);                                                                                  \
    }
#define FORMS(NAME, A)         \
    FORM(NAME, A, 1, 16, 2, 4) \
    FORM(NAME, A, 2, 16, 2, 4) \
    FORM(NAME, A, 4, 16, 2, 8) \
    FORM(NAME, A, 8, 16, 2, 8) \
    FORM(NAME, A, 4, 16, 2, 1) \
    FORM(NAME, A, 8, 16, 2, 1)
#define WIDE_FORMS(NAME, A)     \
    FORM(NAME, A, 16, 16, 2, 8) \
    FORM(NAME, A, 32, 16, 1, 4) \
    FORM(NAME, A, 32, 32, 1, 4) \
    FORM(NAME, A, 16, 16, 2, 1)
