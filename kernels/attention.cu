// out = softmax(scale * q K^T) V over positions 0 ..= position of the row's slot; query head i reads key/value head
// i / (heads / kv_heads). Scores, softmax and sums in f32.
//
// q, out [rows, heads * D], caches [slots * context, kv_heads * D], places [rows]; D = head_dim. Rows of no segment stay.
//
// attention_plain: any dtypes, D <= 256; one warp computes one head of one row (blockIdx.x = row).
#include "common.cuh"

// Twin of `Attention` arguments in attention.rs.
struct Heads {
    Window q, k, v, out;
    const RowPlace* places;
    u32 context, heads, kv_heads, head_dim;
    float scale;
    u32 rows;
};

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
