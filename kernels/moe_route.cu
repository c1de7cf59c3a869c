// Chooses each row's experts from router logits, in f32; the rule is that of core/src/ops/moe_route.rs.
//
// logits [rows, experts] f32, bias [experts] f32 or null, ids [rows, top_k] u32, weights [rows, top_k] f32.
// One warp routes one row; its scores and biased choices lie in shared memory, 2 * experts + groups floats a warp.
// Ties go to the lowest index: keys order by value, then by falling index.
//
// Without groups and with no softmax ahead of the choice, up to 256 experts and 32 choices: moe_route_ranked has a block route a
// row, in which a thread counts the experts that come before its own, all at once; moe_route_lanes a warp, whose lanes find one
// choice after the other in a quarter of the instructions, but not as soon.
#include "common_route.cuh"

__device__ inline float warp_largest(const float* values, u32 count) {
    float most = -INFINITE;
    for (u32 i = threadIdx.x % 32; i < count; i += 32) most = fmaxf(most, values[i]);
    for (int lanes = 16; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, lanes));
    return most;
}

// values = exp(values - max) / sum, over a warp.
__device__ inline void softmax(float* values, u32 count) {
    float most = warp_largest(values, count), sum = 0.0f;
    for (u32 i = threadIdx.x % 32; i < count; i += 32) {
        values[i] = expf(values[i] - most);
        sum += values[i];
    }
    sum = warp_sum(sum);
    for (u32 i = threadIdx.x % 32; i < count; i += 32) values[i] /= sum;
    __syncwarp();
}

// The largest key below `limit` among `count` values, for every lane; 0 where there is none.
__device__ inline u64 next_best(const float* values, u32 count, u64 limit) {
    u64 found = 0;
    for (u32 i = threadIdx.x % 32; i < count; i += 32) {
        u64 key = rank_key(values[i], i);
        if (key < limit && key > found) found = key;
    }
    return warp_max(found);
}

// Sets the choices of the groups that do not stay to minus infinity.
__device__ inline void drop_groups(float* choice, float* worth, u32 experts, const Rule& rule) {
    u32 width = experts / rule.groups;
    for (u32 g = 0; g < rule.groups; g++) {
        u64 first = next_best(choice + g * width, width, ~0ull);
        float sum = key_value(first);
        if (width > 1) sum += key_value(next_best(choice + g * width, width, first));
        if (threadIdx.x % 32 == 0) worth[g] = sum;
    }
    __syncwarp();
    u64 last = ~0ull;
    for (u32 i = 0; i < rule.top_groups; i++) last = next_best(worth, rule.groups, last);
    for (u32 i = threadIdx.x % 32; i < experts; i += 32) {
        if (rank_key(worth[i / width], i / width) < last) choice[i] = -INFINITE;
    }
    __syncwarp();
}

extern "C" __global__ void moe_route(Window logits, const float* bias, Rule rule, Window ids, Window weights,
                                     u32 rows) {
    release_next();
    await_previous();
    extern __shared__ float memory[];
    u32 experts = logits.cols, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* scores = memory + warp * (2 * experts + rule.groups);
    float* choice = scores + experts;
    u32 row = blockIdx.x * (blockDim.x / 32) + warp;
    if (row >= rows) return;
    for (u32 i = lane; i < experts; i += 32) {
        float v = load(logits, row, i);
        scores[i] = rule.score == SIGMOID_SCORE ? sigmoid(v) : v;
    }
    __syncwarp();
    if (rule.score == SOFTMAX_BEFORE_CHOICE) softmax(scores, experts);
    for (u32 i = lane; i < experts; i += 32) choice[i] = scores[i] + (bias ? bias[i] : 0.0f);
    __syncwarp();
    if (rule.groups > 1) drop_groups(choice, choice + experts, experts, rule);

    u32* chosen = reinterpret_cast<u32*>(ids.data) + row * ids.stride;
    float* out = reinterpret_cast<float*>(weights.data) + row * weights.stride;
    u64 key = ~0ull;
    for (u32 i = 0; i < rule.top_k; i++) {
        key = next_best(choice, experts, key);
        if (lane == 0) {
            chosen[i] = key_index(key);
            out[i] = scores[key_index(key)];
        }
    }
    __syncwarp();
    if (rule.score == SOFTMAX_AFTER_CHOICE) softmax(out, rule.top_k);
    float sum = 0.0f;
    for (u32 i = lane; i < rule.top_k; i += 32) sum += out[i];
    float divisor = rule.normalise ? warp_sum(sum) + rule.eps : 1.0f;
    for (u32 i = lane; i < rule.top_k; i += 32) out[i] = out[i] / divisor * rule.scale;
}

// A row's, by a block.
struct Routing {
    uint4 keys[64];
    float scores[256];
    u32 best[32];
};

extern "C" __global__ void __launch_bounds__(256) moe_route_ranked(Window logits, const float* bias, Rule rule, Window ids,
                                                                   Window weights) {
    __shared__ Routing routing;
    release_next();
    u32 experts = logits.cols, e = threadIdx.x, row = blockIdx.x;
    bool there = e < experts;
    float more = bias && there ? bias[e] : 0.0f;
    await_previous();
    float v = there ? load(logits, row, e) : 0.0f;
    if (rule.score == SIGMOID_SCORE) v = sigmoid(v);
    routing.scores[e] = v;
    reinterpret_cast<u32*>(routing.keys)[e] = there ? choice_key(v + more) : 0;
    __syncthreads();
    u32 rank = there ? count_before(routing.keys, experts, e, 0, 1) : experts;
    if (rank < rule.top_k) routing.best[rank] = e;
    __syncthreads();
    if (e >= 32) return;
    u32 chosen = e < rule.top_k ? routing.best[e] : 0;
    write_choice(rule, ids, weights, row, chosen, e < rule.top_k ? routing.scores[chosen] : 0.0f);
}

extern "C" __global__ void moe_route_lanes(Window logits, const float* bias, Rule rule, Window ids, Window weights, u32 rows) {
    release_next();
    await_previous();
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, chosen;
    float score;
    if (row >= rows) return;
    choose(logits, bias, rule, row, chosen, score);
    write_choice(rule, ids, weights, row, chosen, score);
}
