// Mamba2's recurrence a chunk of Q = 64 tokens at a time, on the tensor cores (common_scan_rows.cuh has the formula; Dao and Gu
// 2024, section 6, has the decomposition). With l the running sum of log a inside the chunk and S the state before it:
//
//   y_t = D x_t + e^(l_t) S C_t + sum over s <= t of e^(l_t - l_s) dt_s (C_t . B_s) x_s
//   S  <- e^(l_Q) S + sum over s of e^(l_Q - l_s) dt_s x_s B_s^T
//
// x, out [rows, heads * P], b, c [rows, groups * N], dt [rows, heads], all bf16; params [3, heads] f32: A_log, D, dt_bias;
// state [slots * heads * P, N] f32 or bf16; table [segments].
//
// x, B and C are exact as operands. What is f32 (the state, decayed products, decayed x) enters a product as the sum of
// two bf16, so that the result differs from the sequential form's by about 2^-17 of its terms; sums, decays and the state
// between chunks are f32, and log decays are summed in f64: their differences matter where they are small.
//
// One block of 16 warps scans 32 rows of S of one head of one segment, which stay in registers as sums (blockIdx.x =
// head * tiles + tile, blockIdx.y = segment). The next chunk is on its way while the present one is computed; tokens past
// the segment's end have dt = 0 and change nothing. Coarse and fine parts are summed apart: short chains of products.
// Limits: N <= 128, N and P multiples of 8.
#include "common_mma.cuh"
#include "common_scan_chunk.cuh"

constexpr int P = 32, N = 128, THREADS = 512;
// Bytes of a row, shifted by one 16-byte piece so that ldmatrix meets all banks.
constexpr int PITCH = 2 * N + 16, X_PITCH = 2 * P + 16, M_PITCH = 2 * Q + 16;
constexpr int C_AT = Q * PITCH, X_AT = 2 * Q * PITCH, STAGE = X_AT + Q * X_PITCH;
// The state, the decayed products and the decayed x, each coarse then fine.
constexpr int S_AT = 2 * STAGE, S_FINE = P * PITCH, M_AT = S_AT + 2 * S_FINE, M_FINE = Q * M_PITCH;
constexpr int U_AT = M_AT + 2 * M_FINE, U_FINE = Q * X_PITCH, STEPS_AT = U_AT + 2 * U_FINE;

// Decayed products C_t . B_s dt_s of 16 tokens t and every fourth run of 8 tokens s up to them, into shared memory.
__device__ inline void decayed_products(u32 memory, const Steps& steps, const u32 (*c)[4], u32 b, u32 tokens, u32 quarter) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (u32 run = quarter; run < 2 * (tokens + 1); run += 4) {
        float sums[4][4] = {};
        u32 r[4][4];
#pragma unroll
        for (int k = 0; k < 4; k++) matrices(r[k], b + (8 * run + lane % 8) * PITCH + (4 * k + lane / 8) * 16);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            mma(sums[k % 2], c[2 * k], r[k][0], r[k][1]);
            mma(sums[k % 2 + 2], c[2 * k + 1], r[k][2], r[k][3]);
        }
        u32 source = 8 * run + 2 * t;
        float2 log = *reinterpret_cast<const float2*>(steps.coarse + source);
        float2 log_fine = *reinterpret_cast<const float2*>(steps.fine + source);
        float2 dt = *reinterpret_cast<const float2*>(steps.dt + source);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 target = 16 * tokens + g + 8 * i, coarse, fine;
            float high = steps.coarse[target], low = steps.fine[target], products[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                products[e] = (sums[0][2 * i + e] + sums[1][2 * i + e]) + (sums[2][2 * i + e] + sums[3][2 * i + e]);
            }
            float first = products[0] * power_of_2((high - log.x) + (low - log_fine.x)) * dt.x;
            float second = products[1] * power_of_2((high - log.y) + (low - log_fine.y)) * dt.y;
            split(source <= target ? first : 0.0f, source + 1 <= target ? second : 0.0f, coarse, fine);
            put(memory + M_AT + target * M_PITCH + source * 2, coarse);
            put(memory + M_AT + M_FINE + target * M_PITCH + source * 2, fine);
        }
    }
}

// Decayed x of the chunk, four elements a thread.
__device__ inline void decayed_inputs(u32 memory, const char* x, const Steps& steps) {
    u32 token = threadIdx.x / 8, at = token * X_PITCH + threadIdx.x % 8 * 8;
    uint2 v = *reinterpret_cast<const uint2*>(x + at);
    float scale = steps.to_end[token];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 coarse, fine, pair = i ? v.y : v.x;
        split(bits_f32(pair << 16) * scale, bits_f32(pair & 0xffff0000u) * scale, coarse, fine);
        put(memory + U_AT + at + 4 * i, coarse);
        put(memory + U_AT + U_FINE + at + 4 * i, fine);
    }
}

// Keeps a warp's 16 rows by 16 columns of the state where the next chunk's products read it.
__device__ inline void publish(u32 memory, const float (*s)[4], u32 row, u32 col) {
#pragma unroll
    for (int v = 0; v < 2; v++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 coarse, fine, at = memory + S_AT + (row + 8 * r) * PITCH + (col + 8 * v) * 2;
            split(s[v][2 * r], s[v][2 * r + 1], coarse, fine);
            put(at, coarse);
            put(at + S_FINE, fine);
        }
    }
}

// Between memory and a warp's part of the state.
template <bool OUT>
__device__ inline void move_state(const Window& state, u64 place, u32 rows, u32 cols, float (*s)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 row = i % 2 * 8, col = i / 2 * 8;
        if (row >= rows || col >= cols) continue;
        move_state_two<OUT>(state, place + row * state.stride + col, s[i / 2] + i % 2 * 2);
    }
}

// What the state before the chunk says: 16 tokens by 8 rows of it.
__device__ inline void from_state(u32 memory, const u32 (*c)[4], u32 quarter, float* y) {
    u32 lane = threadIdx.x % 32;
    float sums[4][4] = {};
#pragma unroll
    for (int k = 0; k < N / 32; k++) {
        u32 at = memory + S_AT + (8 * quarter + lane % 8) * PITCH + (4 * k + lane / 8) * 16;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            u32 r[4];
            matrices(r, at + part * S_FINE);
            mma(sums[2 * part], c[2 * k], r[0], r[1]);
            mma(sums[2 * part + 1], c[2 * k + 1], r[2], r[3]);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) y[e] = (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
}

// Adds what the chunk's own tokens say.
__device__ inline void from_tokens(u32 memory, u32 x, u32 tokens, u32 quarter, float* y) {
    u32 lane = threadIdx.x % 32;
    float sums[2][4] = {};
#pragma unroll
    for (u32 pair = 0; pair < 2; pair++) {
        if (2 * pair > tokens) break;
        u32 v[4], m[4];
        matrices_transposed(v, x + (32 * pair + lane) * X_PITCH + quarter * 16);
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            if (2 * pair + k > tokens) break;
#pragma unroll
            for (int part = 0; part < 2; part++) {
                matrices(m, memory + M_AT + part * M_FINE + (16 * tokens + lane % 16) * M_PITCH + (4 * pair + 2 * k + lane / 16) * 16);
                mma(sums[part], m, v[2 * k], v[2 * k + 1]);
            }
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) y[e] += sums[0][e] + sums[1][e];
}

// Decays a warp's part of the state over the chunk and adds the chunk's tokens.
__device__ inline void advance(u32 memory, u32 b, float whole, float (*s)[4]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[2][4] = {};
#pragma unroll
    for (int v = 0; v < 2; v++) {
#pragma unroll
        for (int e = 0; e < 4; e++) s[v][e] *= whole;
    }
#pragma unroll
    for (int k = 0; k < Q / 16; k++) {
        u32 coarse[4], fine[4], r[4];
        u32 at = memory + U_AT + (16 * k + lane / 16 * 8 + lane % 8) * X_PITCH + (warp % 2 * 2 + lane / 8 % 2) * 16;
        matrices_transposed(coarse, at);
        matrices_transposed(fine, at + U_FINE);
        matrices_transposed(r, b + (16 * k + lane % 16) * PITCH + (warp / 2 * 2 + lane / 16) * 16);
#pragma unroll
        for (int v = 0; v < 2; v++) {
            mma(s[v], coarse, r[2 * v], r[2 * v + 1]);
            mma(sums[v], fine, r[2 * v], r[2 * v + 1]);
        }
    }
#pragma unroll
    for (int v = 0; v < 2; v++) {
#pragma unroll
        for (int e = 0; e < 4; e++) s[v][e] += sums[v][e];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ssm_scan_chunk(Scan p) {
    extern __shared__ uint4 pieces[];
    char* shared = reinterpret_cast<char*>(pieces);
    u32 memory = shared_address(shared);
    Steps* steps = reinterpret_cast<Steps*>(shared + STEPS_AT);
    Segment segment = p.table[blockIdx.y];
    if (segment.len == 0) return;
    u32 head = blockIdx.x / p.tiles, first_row = blockIdx.x % p.tiles * P, n = p.state_size;
    u32 group = head / (p.heads / (p.b.cols / n));
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, quarter = warp / 4;
    // Later tokens meet more sources: the four warps of one scheduler take one run of each.
    u32 tokens = (warp + quarter) % 4;
    float a_log = -expf(p.params[head]), skip = p.params[p.heads + head], bias = p.params[2 * p.heads + head];

    auto step_at = [&](u32 token) {
        if (token >= segment.len) return 0.0f;
        const u16* from = reinterpret_cast<const u16*>(p.dt.data) + (segment.first_row + token) * p.dt.stride + head;
        return fminf(fmaxf(softplus(bf16_f32(*from) + bias), p.low), p.high);
    };
    auto fetch = [&](u32 token, u32 side) {
        u32 to = memory + side * STAGE;
        for (u32 i = threadIdx.x; i < 2 * Q * (N / 8); i += THREADS) {
            u32 which = i / (Q * N / 8), row = i / (N / 8) % Q, piece = i % (N / 8);
            const Window& w = which ? p.c : p.b;
            bool there = token + row < segment.len && piece * 8 < n;
            u64 at = there ? ((segment.first_row + token + row) * w.stride + group * n + piece * 8) * 2 : 0;
            copy_async(to + which * C_AT + row * PITCH + piece * 16, w.data + at, there ? 16 : 0);
        }
        if (threadIdx.x < Q * (P / 8)) {
            u32 row = threadIdx.x / (P / 8), piece = threadIdx.x % (P / 8), col = first_row + piece * 8;
            bool there = token + row < segment.len && col < p.head_dim;
            u64 at = there ? ((segment.first_row + token + row) * p.x.stride + head * p.head_dim + col) * 2 : 0;
            copy_async(to + X_AT + row * X_PITCH + piece * 16, p.x.data + at, there ? 16 : 0);
        }
        copy_commit();
    };

    fetch(0, 0);
    // This warp's part of the state: rows state_row and + 8, columns state_col + 8v and the next.
    u32 state_row = warp % 2 * 16 + g, state_col = warp / 2 * 16 + 2 * t;
    float s[2][4] = {};
    auto states_of = [&](u32 slot) {
        return ((u64(slot) * p.heads + head) * p.head_dim + first_row + state_row) * p.state.stride + state_col;
    };
    u32 rows_left = p.head_dim - min(first_row + state_row, p.head_dim), cols_left = n - min(state_col, n);
    if (segment.position > 0) move_state<false>(p.state, states_of(segment.slot), rows_left, cols_left, s);
    publish(memory, s, state_row, state_col);
    // The first tokens meet the fewest sources: their last warp has time.
    bool timer = tokens == 0 && quarter == 3;
    if (timer) make_steps(steps[0], step_at(2 * lane), step_at(2 * lane + 1), a_log);
    copy_wait<0>();
    __syncthreads();

    for (u32 token = 0, side = 0; token < segment.len; token += Q, side ^= 1) {
        bool more = token + Q < segment.len;
        u32 stage = memory + side * STAGE;
        const char* x = shared + side * STAGE + X_AT;
        const Steps& now = steps[side];
        if (more) fetch(token + Q, side ^ 1);
        float dt0 = 0.0f, dt1 = 0.0f;
        if (more && timer) {
            dt0 = step_at(token + Q + 2 * lane);
            dt1 = step_at(token + Q + 2 * lane + 1);
        }
        u32 c[N / 16][4];
#pragma unroll
        for (int k = 0; k < N / 16; k++) {
            matrices(c[k], stage + C_AT + (16 * tokens + lane % 16) * PITCH + (2 * k + lane / 16) * 16);
        }
        decayed_inputs(memory, x, now);
        decayed_products(memory, now, c, stage, tokens, quarter);
        float y[4];
        from_state(memory, c, quarter, y);
#pragma unroll
        for (int e = 0; e < 4; e++) y[e] *= now.from_start[16 * tokens + g + e / 2 * 8];
        __syncthreads();
        from_tokens(memory, stage + X_AT, tokens, quarter, y);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 row = 16 * tokens + g + 8 * r, col = 8 * quarter + 2 * t;
            u32 v = *reinterpret_cast<const u32*>(x + row * X_PITCH + col * 2);
            if (token + row >= segment.len || first_row + col >= p.head_dim) continue;
            u16* out = reinterpret_cast<u16*>(p.out.data) + (segment.first_row + token + row) * p.out.stride;
            *reinterpret_cast<u32*>(out + head * p.head_dim + first_row + col) =
                f32_bf16x2(y[2 * r] + skip * bits_f32(v << 16), y[2 * r + 1] + skip * bits_f32(v & 0xffff0000u));
        }
        advance(memory, stage, now.whole, s);
        if (more) publish(memory, s, state_row, state_col);
        if (more && timer) make_steps(steps[side ^ 1], dt0, dt1, a_log);
        copy_wait<0>();
        __syncthreads();
    }
    // The slot is asked for again: kept from the start, it would take registers that the chunks need.
    u32 slot = *const_cast<const volatile u32*>(&p.table[blockIdx.y].slot);
    move_state<true>(p.state, states_of(slot), rows_left, cols_left, s);
}
