// out[r] = the next token of row r, by the way to choose in rows[r]: the best, or the first column at which the running
// sum of exp((x - max x) / temperature) passes a random number's share of the whole.
//
// x [rows, cols] f32; columns [rows, cols] u32, the column of each candidate, best first, or null where every column is
// one in order; rows [rows, 8] as DrawRow of draw.rs, whose state moves on; out [rows, 1] u32, all ones where the logits
// hold no usable numbers. Weights are f32, their sums f64. One block a row. A place in the running sum is found by
// halving: each warp sums a piece of the range, the piece with the place becomes the range, until it is a warp wide.
#include "common.cuh"

constexpr u32 WARPS = 32;

struct Way {
    float temperature;
    u32 top_k;
    float top_p, min_p;
    u64 state, spare;
};

// The weights of one row.
struct Weights {
    const float* x;
    float highest, floor;
    double scale;

    __device__ float plain(u32 i) const {
        double power = double(x[i] - highest) * scale;
        return expf(float(power < -3.4e38 ? -3.4e38 : power));
    }

    // Those below the floor are none.
    __device__ double operator()(u32 i) const {
        float weight = plain(i);
        return weight >= floor ? double(weight) : 0.0;
    }
};

__device__ inline double warp_total(double v) {
    for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(ALL, v, lanes);
    return v;
}

__device__ inline double warp_prefix(double v) {
    for (u32 lanes = 1; lanes < 32; lanes *= 2) {
        double other = __shfl_up_sync(ALL, v, lanes);
        if (threadIdx.x % 32 >= lanes) v += other;
    }
    return v;
}

// Of 32 amounts the first whose running sum passes the target, or reaches it, else the last that is not 0; the target
// becomes what is left of it there.
__device__ inline u32 place_of(double own, double& target, bool reach) {
    double sum = warp_prefix(own);
    u32 hits = __ballot_sync(ALL, own > 0.0 && (reach ? sum >= target : sum > target));
    u32 some = __ballot_sync(ALL, own > 0.0);
    u32 place = hits ? __ffs(hits) - 1 : some ? 31 - __clz(some) : 0;
    target -= __shfl_sync(ALL, sum - own, place);
    return place;
}

// Every thread of the block gets the place.
__device__ u32 locate(const Weights& weights, u32 count, double target, bool reach, double* sums) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, low = 0, high = count;
    while (high - low > 32) {
        u32 width = ((high - low + WARPS - 1) / WARPS + 31) / 32 * 32;
        u32 first = low + warp * width, last = min(first + width, high);
        double sum = 0;
        for (u32 i = first + lane; i < last; i += 32) sum += weights(i);
        sum = warp_total(sum);
        if (lane == 0) sums[warp] = sum;
        __syncthreads();
        u32 piece = place_of(sums[lane], target, reach);
        __syncthreads();
        low += piece * width;
        high = min(low + width, high);
    }
    return low + place_of(low + lane < high ? weights(low + lane) : 0.0, target, reach);
}

__device__ inline double block_total(const Weights& weights, u32 count, double* sums) {
    double sum = 0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) sum += weights(i);
    sum = warp_total(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warp_total(sums[threadIdx.x % 32]);
    __syncthreads();
    return sum;
}

// The next number of 0..1 of SplitMix64, as random.rs has it.
__device__ inline double next_unit(u64& state) {
    state += 0x9e3779b97f4a7c15ull;
    u64 z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return double(z >> 11) / 9007199254740992.0;
}

extern "C" __global__ void __launch_bounds__(1024) draw(Window x, Window columns, Window rows, Window out) {
    release_next();
    await_previous();
    __shared__ double sums[WARPS];
    __shared__ u64 keys[WARPS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Way* place = reinterpret_cast<Way*>(rows.data + blockIdx.x * rows.stride * 4);
    Way way = *place;
    const float* row = reinterpret_cast<const float*>(x.data) + blockIdx.x * x.stride;
    bool sorted = columns.data != nullptr;
    u32 count = sorted && way.top_k > 0 ? min(x.cols, way.top_k) : x.cols;
    u64 best = 0;
    bool bad = false;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        bad |= !(row[i] < INFINITE);
        u64 key = rank_key(row[i], i);
        best = key > best ? key : best;
    }
    best = warp_max(best);
    if (lane == 0) keys[warp] = best;
    bad = __syncthreads_or(bad);
    best = warp_max(keys[lane]);
    float highest = key_value(best);
    u32 chosen = key_index(best);
    bad |= highest == -INFINITE;
    if (!bad && way.temperature != 0.0f && way.top_k != 1) {
        Weights weights{row, highest, 0.0f, 1.0 / double(way.temperature)};
        if (sorted && way.top_p < 1.0f) {
            double wanted = block_total(weights, count, sums) * double(way.top_p);
            count = locate(weights, count, wanted, true, sums) + 1;
        }
        weights.floor = way.min_p;
        double target = next_unit(way.state) * block_total(weights, count, sums);
        chosen = locate(weights, count, target, false, sums);
        if (threadIdx.x == 0) place->state = way.state;
    }
    if (threadIdx.x == 0) {
        u32 token = sorted ? reinterpret_cast<const u32*>(columns.data)[blockIdx.x * columns.stride + chosen] : chosen;
        reinterpret_cast<u32*>(out.data)[blockIdx.x * out.stride] = bad ? 0xffffffffu : token;
    }
}
