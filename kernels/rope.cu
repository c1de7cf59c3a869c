// Rotary position embedding, half-split, in place, in f32: columns i and i + pairs of each head turn by
// position * inv_freq[i].
//
// x [rows, heads * head_dim] of any float dtype, inv_freq [pairs] f32, places [rows]. Rows of no segment stay.
// One thread turns pairs of one row; blockIdx.x = row.
#include "common.cuh"

extern "C" __global__ void rope(Window x, const float* inv_freq, u32 pairs, u32 head_dim, const RowPlace* places) {
    RowPlace place = places[blockIdx.x];
    if (place.slot == PADDING) return;
    u32 count = x.cols / head_dim * pairs;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 low = i / pairs * head_dim + i % pairs, high = low + pairs;
        float sine, cosine;
        sincosf(float(place.position) * inv_freq[i % pairs], &sine, &cosine);
        float a = load(x, blockIdx.x, low), b = load(x, blockIdx.x, high);
        store(x, blockIdx.x, low, a * cosine - b * sine);
        store(x, blockIdx.x, high, b * cosine + a * sine);
    }
}
