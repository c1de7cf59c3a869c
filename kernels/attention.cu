// out = softmax(scale * q K^T) V over positions 0 ..= position of the row's slot; query head i reads key/value head
// i / (heads / kv_heads). Scores, softmax and sums in f32.
//
// q, out [rows, heads * D], caches [slots * context, kv_heads * D], places [rows]; D = head_dim. Rows of no segment stay.
//
// attention_plain: any dtypes, D <= 256; one warp computes one head of one row (blockIdx.x = row).
// attention_decode_W (common_attention.cuh): one block takes 16 heads of one row over one part of its positions, 16
// positions a warp at a time, all loads 16 bytes and straight to registers; attention_combine joins the parts.
// Many rows go through attention_tile.cu.
#include "common_attention.cuh"

extern "C" __global__ void attention_plain(Heads p) {
    u32 lane = threadIdx.x % 32, row = blockIdx.x, d = p.head_dim;
    u32 head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    RowPlace place = p.places[row];
    if (place.slot == PADDING || head >= p.heads) return;
    u32 kv = head / (p.heads / p.kv_heads) * d;
    float query[8], sums[8] = {}, most = -INFINITE, total = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 col = lane + 32 * i;
        query[i] = col < d ? load(p.q, row, head * d + col) * p.scale : 0.0f;
    }
    for (u32 position = 0; position <= place.position; position++) {
        u64 token = u64(place.slot) * p.context + position;
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 col = lane + 32 * i;
            if (col < d) score += query[i] * load(p.k, token, kv + col);
        }
        score = warp_sum(score);
        float next = fmaxf(most, score), keep = expf(most - next), weight = expf(score - next);
        total = total * keep + weight;
        most = next;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 col = lane + 32 * i;
            if (col < d) sums[i] = sums[i] * keep + weight * load(p.v, token, kv + col);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 col = lane + 32 * i;
        if (col < d) store(p.out, row, head * d + col, sums[i] / total);
    }
}

template <int W>
__device__ inline void decode(const Heads& p) {
    release_next();
    await_previous();
    constexpr int WARPS = 4, D = 64 * W, PITCH = D + 2;
    extern __shared__ float shared[];  // [WARPS][16][PITCH]
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, row = blockIdx.x, d = p.head_dim;
    RowPlace place = p.places[row];
    if (place.slot == PADDING) return;
    u32 group = p.heads / p.kv_heads, blocks = (group + 15) / 16, kv = blockIdx.y / blocks;
    u32 first = kv * group + blockIdx.y % blocks * 16, count = min(16u, (kv + 1) * group - first);
    u32 length = place.position + 1, part = ((length + p.parts - 1) / p.parts + 63) / 64 * 64;
    u32 begin = blockIdx.z * part, end = min(begin + part, length);
    const u16* query = reinterpret_cast<const u16*>(p.q.data) + row * p.q.stride + first * d;
    const u16* keys = reinterpret_cast<const u16*>(p.k.data) + u64(place.slot) * p.context * p.k.stride + kv * d;
    const u16* values = reinterpret_cast<const u16*>(p.v.data) + u64(place.slot) * p.context * p.v.stride + kv * d;
    u32 q[2 * W][4][2];
    load_queries<W>(g < count ? query + g * d : nullptr, g + 8 < count ? query + (g + 8) * d : nullptr, d, q);

    Running low, high;
    float sums[8 * W][4] = {};
    for (u32 base = begin + 16 * warp; base < end; base += 16 * WARPS) {
        uint4 k[2][2 * W], v[4][W];
        const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u16* from = keys + u64(min(base + 8 * i + g, end - 1)) * p.k.stride;
#pragma unroll
            for (int c = 0; c < 2 * W; c++) {
                u32 dim = 32 * c + 8 * t;
                k[i][c] = dim < d ? *reinterpret_cast<const uint4*>(from + dim) : zero;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u16* from = values + u64(min(base + 2 * t + i % 2 + i / 2 * 8, end - 1)) * p.v.stride;
#pragma unroll
            for (int c = 0; c < W; c++) {
                u32 dim = 64 * c + 8 * g;
                v[i][c] = dim < d ? *reinterpret_cast<const uint4*>(from + dim) : zero;
            }
        }
        float s[2][4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int c = 0; c < 2 * W; c++) add_scores(s[i], q[c], k[i][c]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[i][e] = base + 8 * i + 2 * t + e % 2 < end ? s[i][e] * p.scale : -INFINITE;
            }
        }
        float keep_low = low.raise(fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1])));
        float keep_high = high.raise(fmaxf(fmaxf(s[0][2], s[0][3]), fmaxf(s[1][2], s[1][3])));
        low.total *= keep_low;
        high.total *= keep_high;
        u32 coarse[4], fine[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float a = low.weight(s[i][0]), b = low.weight(s[i][1]), c = high.weight(s[i][2]), e = high.weight(s[i][3]);
            low.total += a + b;
            high.total += c + e;
            split(a, b, coarse[2 * i], fine[2 * i]);
            split(c, e, coarse[2 * i + 1], fine[2 * i + 1]);
        }
#pragma unroll
        for (int j = 0; j < 8 * W; j++) {
            float* sum = sums[j];
            sum[0] *= keep_low;
            sum[1] *= keep_low;
            sum[2] *= keep_high;
            sum[3] *= keep_high;
            // Element j % 8 of each lane's piece: two positions of one dim in a register.
            const int word = j % 8 / 2, selector = j % 2 ? 0x7632 : 0x5410;
            u32 b0 = __byte_perm((&v[0][j / 8].x)[word], (&v[1][j / 8].x)[word], selector);
            u32 b1 = __byte_perm((&v[2][j / 8].x)[word], (&v[3][j / 8].x)[word], selector);
            mma(sum, coarse, b0, b1);
            mma(sum, fine, b0, b1);
        }
    }
    Running* both[2] = {&low, &high};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = both[r]->total;
        total += __shfl_xor_sync(ALL, total, 1);
        total += __shfl_xor_sync(ALL, total, 2);
        float* to = shared + (warp * 16 + g + 8 * r) * PITCH;
#pragma unroll
        for (int j = 0; j < 8 * W; j++) {
            to[64 * (j / 8) + 8 * (2 * t) + j % 8] = sums[j][2 * r];
            to[64 * (j / 8) + 8 * (2 * t + 1) + j % 8] = sums[j][2 * r + 1];
        }
        if (t == 0) {
            to[D] = both[r]->most;
            to[D + 1] = total;
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count * (d + 2); i += 32 * WARPS) {
        u32 head = i / (d + 2), dim = i % (d + 2);
        const float* from = shared + head * PITCH;
        float most = -INFINITE, sum = 0.0f;
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, from[w * 16 * PITCH + D]);
        for (int w = 0; w < WARPS; w++) {
            float m = from[w * 16 * PITCH + D], factor = m == -INFINITE ? 0.0f : expf(m - most);
            sum += factor * from[w * 16 * PITCH + (dim < d ? dim : D + 1)];
        }
        float* to = p.partial + ((u64(row) * p.heads + first + head) * p.parts + blockIdx.z) * (d + 2);
        to[dim] = dim == d ? most : sum;
    }
}

constexpr u32 MAX_PARTS = 512;  // a thread each

extern "C" __global__ void __launch_bounds__(MAX_PARTS) attention_combine(Heads p) {
    release_next();
    await_previous();
    __shared__ float factors[MAX_PARTS], sums[MAX_PARTS], scratch[32];
    u32 row = blockIdx.x, head = blockIdx.y, d = p.head_dim, mine = threadIdx.x;
    if (p.places[row].slot == PADDING) return;
    const float* from = p.partial + (u64(row) * p.heads + head) * p.parts * (d + 2);
    float most = -INFINITE, weight = 0.0f;
    if (mine < p.parts) most = from[mine * (d + 2) + d], weight = from[mine * (d + 2) + d + 1];
    float largest = most;
    for (int lanes = 16; lanes > 0; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, lanes));
    if (mine % 32 == 0) scratch[mine / 32] = largest;
    __syncthreads();
    for (u32 warp = 0; warp < MAX_PARTS / 32; warp++) largest = fmaxf(largest, scratch[warp]);
    __syncthreads();
    factors[mine] = most == -INFINITE ? 0.0f : expf(most - largest);
    float total = block_sum(factors[mine] * weight, scratch);
    // Parts are dealt over as many threads a dim as there are.
    u32 width = d <= 64 ? 64 : 128, dim = mine % width;
    float sum = 0.0f;
    if (dim < d) {
#pragma unroll 8
        for (u32 part = mine / width; part < p.parts; part += MAX_PARTS / width) sum += factors[part] * from[part * (d + 2) + dim];
    }
    sums[mine] = sum;
    __syncthreads();
    if (mine >= d) return;
    for (u32 at = mine + width; at < MAX_PARTS; at += width) sum += sums[at];
    store(p.out, row, head * d + mine, sum / total);
}

extern "C" __global__ void __launch_bounds__(128) attention_decode_1(Heads p) { decode<1>(p); }
extern "C" __global__ void __launch_bounds__(128) attention_decode_2(Heads p) { decode<2>(p); }
