// Helpers of every kernel: operands, number formats, reductions. Free of toolkit headers, so that NVRTC alone suffices.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum DType { F32, F16, BF16, U32, F8E4M3 };
enum Format { W_F32, W_F16, W_BF16, W_NVFP4, W_FP8 };
enum Function { IDENTITY, SILU, RELU2, GELU, SIGMOID };

// A window of a tensor: row r, column c is element r * stride + c. Twin of `Window` in view.rs.
struct Window {
    char* data;  // [rows, stride]
    u64 stride;
    u32 dtype;
    u32 cols;
};

// A weight of `experts` matrices. Twin of `Bank` in view.rs.
struct Bank {
    const u8* data;      // [experts, rows, cols] in `format`, NVFP4 in the order of `code_place`
    const u8* scales;    // [experts, rows, cols / 16] E4M3 in the order of `scale_place`, NVFP4 only
    const float* scale;  // [experts]
    u32 rows, cols;
    u32 format;
    u32 experts;
};

// Twins of `Segment` and `RowPlace` in batch.rs.
struct Segment {
    u32 first_row, len, slot, position;
};
struct RowPlace {
    u32 slot, position, segment, index;
};
enum : u32 { PADDING = 0xffffffffu, ALL = 0xffffffffu };

#define INFINITE __int_as_float(0x7f800000)

// ---- numbers

__device__ inline float bits_f32(u32 bits) { return __uint_as_float(bits); }

__device__ inline float bf16_f32(u16 v) { return bits_f32(u32(v) << 16); }

__device__ inline u16 f32_bf16(float v) {
    u16 out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(v));
    return out;
}

// Two values, `low` in the low half.
__device__ inline u32 f32_bf16x2(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ inline float f16_f32(u16 v) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(v));
    return out;
}

__device__ inline u16 f32_f16(float v) {
    u16 out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(v));
    return out;
}

// E4M3 has the mantissa of f16's top three bits and an exponent bias that is smaller by 8.
__device__ inline float e4m3_f32(u8 v) {
    if ((v & 0x7f) == 0x7f) return bits_f32(0x7fc00000u);
    return f16_f32(u16((v & 0x80) << 8 | (v & 0x7f) << 7)) * 256.0f;
}

// Nearest, ties to even, saturating at 448; NaN stays NaN.
__device__ inline u8 f32_e4m3(float v) {
    if (v != v) return 0x7f;
    u8 sign = __float_as_uint(v) >> 31 ? 0x80 : 0;
    float magnitude = fminf(fabsf(v), 448.0f);
    int exponent = int(__float_as_uint(fmaxf(magnitude, 0.015625f)) >> 23) - 127;
    // Neighbours are 2^(exponent - 3) apart; codes are consecutive, so a carry out of the mantissa is right.
    float steps = rintf(magnitude * bits_f32(u32(130 - exponent) << 23));
    return sign | u8(int(steps) + (exponent + 6) * 8);
}

__device__ inline float e2m1_f32(u32 code) {
    return bits_f32((code & 8) << 28 | (code & 7) << 22) * 0x1p126f;
}

// ---- launches that overlap: a kernel may fetch what no kernel of the step writes before it waits for the ones before it

// Lets the next kernel start once every block of this one has.
__device__ inline void release_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernels before this one are done and their results are visible.
__device__ inline void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- operands

__device__ inline float load(const Window& w, u64 row, u32 col) {
    u64 i = row * w.stride + col;
    if (w.dtype == BF16) return bf16_f32(reinterpret_cast<const u16*>(w.data)[i]);
    if (w.dtype == F32) return reinterpret_cast<const float*>(w.data)[i];
    if (w.dtype == F16) return f16_f32(reinterpret_cast<const u16*>(w.data)[i]);
    return e4m3_f32(reinterpret_cast<const u8*>(w.data)[i]);
}

__device__ inline void store(const Window& w, u64 row, u32 col, float v) {
    u64 i = row * w.stride + col;
    if (w.dtype == BF16) reinterpret_cast<u16*>(w.data)[i] = f32_bf16(v);
    else if (w.dtype == F32) reinterpret_cast<float*>(w.data)[i] = v;
    else if (w.dtype == F16) reinterpret_cast<u16*>(w.data)[i] = f32_f16(v);
    else reinterpret_cast<u8*>(w.data)[i] = f32_e4m3(v);
}

// An activation of a type known when compiling.
__device__ inline float widen(float v) { return v; }
__device__ inline float widen(u16 v) { return bf16_f32(v); }
__device__ inline void narrow(float& to, float v) { to = v; }
__device__ inline void narrow(u16& to, float v) { to = f32_bf16(v); }

// What a product does with its target: replace, or add `scale` times the result.
struct Store {
    u32 accumulate;
    float scale;
};

__device__ inline void store(const Window& w, u64 row, u32 col, float v, const Store& how) {
    if (how.accumulate) v = load(w, row, col) + how.scale * v;
    store(w, row, col, v);
}

// Codes of 8 columns lie in one word, columns 0 2 4 6 in its low half and 1 3 5 7 in its high half (common_load.cu).
__device__ inline u32 nvfp4_code(u32 word, u32 col) { return word >> ((col & 7) / 2 * 4 + (col & 1) * 16) & 15; }

// Where the scale of a block of 16 columns lies: stripes of 16 rows, in them chunks of 4 blocks, in them rows of 4. What rows
// or blocks do not fill is left out. So what warps take together lies together, and whole tiles of 16 rows in one piece.
constexpr u32 STRIPE = 16, CHUNK = 4;
__device__ inline u64 scale_place(const Bank& w, u64 matrix /* rows before it */, u32 row, u32 block) {
    u32 blocks = w.cols / 16, first = row / STRIPE * STRIPE, chunk = block / CHUNK * CHUNK;
    u32 height = min(STRIPE, w.rows - first), width = min(CHUNK, blocks - chunk);
    return (matrix + first) * blocks + chunk * height + (row - first) * width + (block - chunk);
}

// The first byte of a block's codes: they lie as their scales do, eight bytes each.
__device__ inline u64 code_place(const Bank& w, u64 matrix, u32 row, u32 block) { return 8 * scale_place(w, matrix, row, block); }

__device__ inline float weight_at(const Bank& w, u32 expert, u32 row, u32 col) {
    u64 matrix = u64(expert) * w.rows, i = (matrix + row) * w.cols + col;
    if (w.format == W_BF16) return bf16_f32(reinterpret_cast<const u16*>(w.data)[i]);
    if (w.format == W_F32) return reinterpret_cast<const float*>(w.data)[i];
    if (w.format == W_F16) return f16_f32(reinterpret_cast<const u16*>(w.data)[i]);
    if (w.format == W_FP8) return e4m3_f32(w.data[i]) * w.scale[expert];
    u64 place = scale_place(w, matrix, row, col / 16);
    u32 word = reinterpret_cast<const u32*>(w.data)[place * 2 + col / 8 % 2];
    return e2m1_f32(nvfp4_code(word, col)) * e4m3_f32(w.scales[place]) * w.scale[expert];
}

// ---- functions

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }
__device__ inline float quick_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }  // to be rounded to bf16
// Linear above 20, where the two agree in f32 and the exponential would overflow.
__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

__device__ inline float apply(u32 function, float x) {
    if (function == SILU) return silu(x);
    if (function == RELU2) return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    if (function == GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    if (function == SIGMOID) return sigmoid(x);
    return x;
}

// The functions that are not worth inlining many times.
__device__ __noinline__ float apply_rare(u32 function, float x) { return apply(function, x); }

// ---- reductions

__device__ inline float warp_sum(float v) {
    for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(ALL, v, lanes);
    return v;
}

__device__ inline u64 warp_max(u64 v) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        u64 other = __shfl_xor_sync(ALL, v, lanes);
        v = other > v ? other : v;
    }
    return v;
}

// The sum over a block of whole warps, for every thread. `scratch` holds 32 floats; it may be used again at once.
__device__ inline float block_sum(float v, float* scratch) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f;
    v = warp_sum(v);
    __syncthreads();
    return v;
}

// The largest of what the threads of a block of whole warps hold, for every thread; none of it is negative, and NaN is largest.
// `scratch` holds 32 words; it may be used again at once.
__device__ inline float block_most(float v, u32* scratch) {
    // The bits of such numbers are in their order.
    u32 bits = __reduce_max_sync(ALL, __float_as_uint(v));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = bits;
    __syncthreads();
    bits = __reduce_max_sync(ALL, threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0);
    __syncthreads();
    return bits_f32(bits);
}

// The larger of two numbers that are not negative; NaN is largest.
__device__ inline float most(float a, float b) { return bits_f32(max(__float_as_uint(a), __float_as_uint(b))); }

// The sum of what lower threads of the block hold, and of all; `scratch` [32] is shared.
__device__ inline u32 block_before(u32 mine, u32* scratch, u32& all) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, through = mine;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 other = __shfl_up_sync(ALL, through, step);
        if (lane >= step) through += other;
    }
    if (lane == 31) scratch[warp] = through;
    __syncthreads();
    u32 sum = lane < blockDim.x / 32 ? scratch[lane] : 0;
    all = __reduce_add_sync(ALL, sum);
    return through - mine + __reduce_add_sync(ALL, lane < warp ? sum : 0);
}

// Orders like f32's total order, largest first, then lowest index: what `best` in moe_route.rs sorts by.
__device__ inline u64 rank_key(float v, u32 index) {
    u32 bits = __float_as_uint(v);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return u64(bits) << 32 | (0xffffffffu - index);
}

__device__ inline u32 key_index(u64 key) { return 0xffffffffu - u32(key); }

__device__ inline float key_value(u64 key) {
    u32 bits = u32(key >> 32);
    return bits_f32(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

// ---- asynchronous copies of 16 bytes; `bytes` of 0 writes zeros and reads nothing

__device__ inline u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

__device__ inline void copy_async(u32 to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ inline void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- bf16 on the tensor cores: d += a b, m16n8k16

__device__ inline void mma(float* d, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two bf16 whose sum is the value, for two values.
__device__ inline void split(float low, float high, u32& coarse, u32& fine) {
    coarse = f32_bf16x2(low, high);
    fine = f32_bf16x2(low - bits_f32(coarse << 16), high - bits_f32(coarse & 0xffff0000u));
}

// ---- shared memory by address, in the order in which copies arrive there

__device__ inline uint4 load_shared(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

__device__ inline u32 load_shared_u16(u32 from) {
    u32 v;
    asm volatile("{.reg .u16 v; ld.shared.u16 v, [%1]; cvt.u32.u16 %0, v;}" : "=r"(v) : "r"(from) : "memory");
    return v;
}
