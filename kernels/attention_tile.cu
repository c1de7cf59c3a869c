// Attention for many rows (attention.cu has the formula; common_attention.cuh the conditions).
//
// q, out [rows, heads * D], caches [slots * context, kv_heads * D], table [segments]; D <= 128.
//
// attention_tile_W: one block of 4 warps takes 64 (row, head) pairs of one segment and key/value head, neighbours in the
// order row * group + head, and walks over tiles of 64 positions, copied ahead; tiles past the last pair's position are
// not visited. blockIdx.x = tile of pairs, longest walks first; y = key/value head; z = segment.
#include "common_attention.cuh"

constexpr int TOKENS = 64;  // positions of a tile

template <int W>
__device__ inline void tile(const Heads& p) {
    // Key rows are shifted by half the banks and value rows by a piece: what the two ways of reading them want.
    constexpr int K_PITCH = 128 * W + 64, V_PITCH = 128 * W + 16, STAGE = TOKENS * (K_PITCH + V_PITCH);
    extern __shared__ uint4 pieces[];
    char* memory = reinterpret_cast<char*>(pieces);
    Segment segment = p.table[blockIdx.z];
    u32 group = p.heads / p.kv_heads, kv = blockIdx.y, d = p.head_dim, base = (gridDim.x - 1 - blockIdx.x) * 64;
    if (base >= segment.len * group) return;
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    u32 last_pair = min(base + 64, segment.len * group) - 1;
    u32 length = segment.position + last_pair / group + 1, tiles = (length + TOKENS - 1) / TOKENS;
    const char* keys = p.k.data + (u64(segment.slot) * p.context * p.k.stride + kv * d) * 2;
    const char* values = p.v.data + (u64(segment.slot) * p.context * p.v.stride + kv * d) * 2;
    auto fetch = [&](u32 number) {
        u32 to = shared_address(memory) + number % 2 * STAGE;
        for (u32 i = threadIdx.x; i < TOKENS * 8 * W; i += 128) {
            u32 token = i / (8 * W), piece = i % (8 * W), position = number * TOKENS + token;
            u32 bytes = position < length && piece * 8 < d ? 16 : 0;
            u64 at = bytes ? u64(position) * p.k.stride * 2 + piece * 16 : 0;
            u64 at_value = bytes ? u64(position) * p.v.stride * 2 + piece * 16 : 0;
            copy_async(to + token * K_PITCH + piece * 16, keys + at, bytes);
            copy_async(to + TOKENS * K_PITCH + token * V_PITCH + piece * 16, values + at_value, bytes);
        }
    };
    fetch(0);
    copy_commit();
    const u16* query[2];
    u32 pair[2], position[2];
    for (int r = 0; r < 2; r++) {
        pair[r] = base + warp * 16 + g + 8 * r;
        u32 inside = min(pair[r], segment.len * group - 1);
        position[r] = segment.position + inside / group;
        query[r] = reinterpret_cast<const u16*>(p.q.data) + (segment.first_row + inside / group) * p.q.stride +
                   (kv * group + inside % group) * d;
    }
    u32 q[2 * W][4][2];
    load_queries<W>(query[0], query[1], d, q);
    Running running[2];
    float sums[8 * W][4] = {};
    for (u32 number = 0; number < tiles; number++) {
        copy_wait<0>();
        __syncthreads();
        if (number + 1 < tiles) fetch(number + 1);
        copy_commit();
        const char* k = memory + number % 2 * STAGE + g * K_PITCH + 16 * t;
        float s[8][4] = {}, most[2] = {-INFINITE, -INFINITE};
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int c = 0; c < 2 * W; c++) {
                add_scores(s[i], q[c], *reinterpret_cast<const uint4*>(k + i * 8 * K_PITCH + 64 * c));
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u32 token = number * TOKENS + 8 * i + 2 * t + e % 2;
                s[i][e] = token <= position[e / 2] ? s[i][e] * p.scale : -INFINITE;
                most[e / 2] = fmaxf(most[e / 2], s[i][e]);
            }
        }
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            keep[r] = running[r].raise(most[r]);
            running[r].total *= keep[r];
        }
#pragma unroll
        for (int j = 0; j < 8 * W; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) sums[j][e] *= keep[e / 2];
        }
        u32 v = shared_address(memory) + number % 2 * STAGE + TOKENS * K_PITCH + lane % 16 * V_PITCH + lane / 16 * 16;
#pragma unroll
        for (int i = 0; i < TOKENS / 16; i++) {
            u32 coarse[4], fine[4];
#pragma unroll
            for (int h = 0; h < 4; h++) {
                float* pairs = s[2 * i + h / 2] + h % 2 * 2;
                float a = running[h % 2].weight(pairs[0]), b = running[h % 2].weight(pairs[1]);
                running[h % 2].total += a + b;
                split(a, b, coarse[h], fine[h]);
            }
#pragma unroll
            for (int j = 0; j < 4 * W; j++) {
                u32 b[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                             : "r"(v + i * 16 * V_PITCH + j * 32));
                mma(sums[2 * j], coarse, b[0], b[1]);
                mma(sums[2 * j], fine, b[0], b[1]);
                mma(sums[2 * j + 1], coarse, b[2], b[3]);
                mma(sums[2 * j + 1], fine, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = running[r].total;
        total += __shfl_xor_sync(ALL, total, 1);
        total += __shfl_xor_sync(ALL, total, 2);
        if (pair[r] >= segment.len * group) continue;
        u16* out = reinterpret_cast<u16*>(p.out.data) + (segment.first_row + pair[r] / group) * p.out.stride +
                   (kv * group + pair[r] % group) * d;
#pragma unroll
        for (int j = 0; j < 8 * W; j++) {
            u32 dim = 8 * j + 2 * t;
            if (dim < d) {
                *reinterpret_cast<u32*>(out + dim) = f32_bf16x2(sums[j][2 * r] / total, sums[j][2 * r + 1] / total);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) attention_tile_1(Heads p) { tile<1>(p); }
extern "C" __global__ void __launch_bounds__(128) attention_tile_2(Heads p) { tile<2>(p); }
