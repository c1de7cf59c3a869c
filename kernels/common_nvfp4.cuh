// Products of few rows with an NVFP4 weight on the integer units of the tensor cores; the weight is read once.
//
// Twice an E2M1 value plus 12 is a byte of 0..24, found in tables of eight, four codes a lookup. Sixteen columns of x,
// the block of a weight's scale, become 15-bit integers under a power of two of their own, each the sum of a coarse byte
// times 256 and a fine one: nothing is lost of a bf16 value within 2^6 of its block's largest. So a block's sums are
// exact, and only then meet the scales, in f32. The 12 is taken off by starting from -12 times the sum of x.
//
// A warp's step is 2048 weights: 128 columns of 16 outputs, or 256 of 8. Lane (g = lane / 4, t = lane % 4) holds 32
// columns, two blocks, of outputs g and g + 8 of mma.m16n8k32, or two times 32 of output g. An instruction so mixes the
// blocks of four t; they are told apart by B, whose column 2t + piece has the coarse or fine bytes of x at the places of
// lanes t and zeros elsewhere. So lane (g, t) ends up with the sums of its own block, and scales them by itself.
//
// How steps get to their warps: common_nvfp4_stream.cuh.
#pragma once
#include "common.cuh"

constexpr u32 WARPS = 16, THREADS = 32 * WARPS, STEP = 1024 + 128;  // a step's codes and block scales, bytes
constexpr int STAGES = 4;                                           // of a warp's ring

// Puts back the 2^-120 of block scales, the 2^100 of staged powers of two and the doubled values.
constexpr float FACTOR = 0x1p19f;

// Columns of a step; staged bytes of one row for them.
template <int OUTPUTS>
constexpr u32 COLUMNS = 2048 / OUTPUTS;
template <int OUTPUTS>
constexpr u32 SPAN = 2 * COLUMNS<OUTPUTS>;

// ---- staged activations: for each 128 columns [4 pairs of blocks][coarse, fine][2 blocks][16 bytes], and beside it
// [8 blocks] of the correction and the power of two

struct Staging {
    char* bytes;  // [rows, pitch]
    u32 pitch, rows;

    __device__ inline char* codes(u32 row, u32 eight) const {
        return bytes + row * pitch + eight / 4 * 64 + eight % 4 * 8;
    }
    __device__ inline float2* terms(u32 row, u32 block) const {
        return reinterpret_cast<float2*>(bytes + rows * pitch + row * (pitch / 4) + block * 8);
    }
    // Eights of columns of a row.
    __device__ inline u32 eights() const { return pitch / 16; }
};

// Bytes of a staged row.
template <int OUTPUTS>
__device__ inline u32 row_pitch(u32 cols) {
    return (cols + COLUMNS<OUTPUTS> - 1) / COLUMNS<OUTPUTS> * SPAN<OUTPUTS>;
}

// Stages 8 columns of a row; the other 8 of the block are with the neighbouring lane, and all lanes of the warp call. What
// is not finite makes the power of two, and so every sum, not a number.
__device__ inline void stage_eight(const Staging& staging, u32 row, u32 eight, const float* v, float factor, bool there = true) {
    constexpr u32 MAGIC = 0x4b400080u;  // adds to f32 what leaves value + 128 in the low bits
    u32 most = 0, sum = 0, q[8];
#pragma unroll
    for (int i = 0; i < 8; i++) most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
    most = max(most, __shfl_xor_sync(ALL, most, 1));
    u32 exponent = max(most >> 23, 14u);
    float up = bits_f32((267u - min(exponent, 254u)) << 23);
    float down = most < 0x7f800000u ? bits_f32(min(exponent + 87u, 254u) << 23) : bits_f32(0x7fc00000u);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        q[i] = __float_as_uint(fmaf(v[i], up, bits_f32(MAGIC)));
        sum += q[i];
    }
    sum += __shfl_xor_sync(ALL, sum, 1);
    if (!there) return;
    uint2 coarse, fine;
#pragma unroll
    for (int w = 0; w < 2; w++) {
        // Columns 0 2 4 6, then 1 3 5 7, as common_load.cu orders the codes.
        u32 low = __byte_perm(q[w], q[w + 2], 0x5140), high = __byte_perm(q[w + 4], q[w + 6], 0x5140);
        (&fine.x)[w] = __byte_perm(low, high, 0x5410) ^ 0x80808080u;
        (&coarse.x)[w] = __byte_perm(low, high, 0x7632);
    }
    char* to = staging.codes(row, eight);
    *reinterpret_cast<uint2*>(to) = coarse;
    *reinterpret_cast<uint2*>(to + 32) = fine;
    int correction = -12 * int(sum - 16 * MAGIC);
    if (eight % 2 == 0) *staging.terms(row, eight / 2) = make_float2(__int_as_float(correction), down * factor);
}

// Eight f32 or bf16 columns.
__device__ inline void read_eight(const float* from, float* v) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 four = reinterpret_cast<const float4*>(from)[i];
        v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
    }
}
__device__ inline void widen_eight(const uint4& eight, float* v) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        u32 word = (&eight.x)[k / 2];
        v[k] = bits_f32(k % 2 ? word & 0xffff0000u : word << 16);
    }
}
__device__ inline void read_eight(const u16* from, float* v) { widen_eight(*reinterpret_cast<const uint4*>(from), v); }

// Calls `each(i)` for i below `count`, and for more up to whole warps.
template <class EACH>
__device__ inline void by_warps(u32 count, EACH each) {
    for (u32 i = threadIdx.x; i - threadIdx.x % 32 < count; i += THREADS) each(i);
}

// Stages rows of bf16, zeros past `cols`; `row(i)` is the i-th.
template <class ROW>
__device__ inline void stage_rows(const Staging& staging, u32 count, u32 cols, ROW row) {
    u32 eights = staging.eights();
    by_warps(staging.rows * eights, [&](u32 i) {
        float v[8] = {};
        if (i / eights < count && i % eights * 8 < cols) read_eight(row(i / eights) + i % eights * 8, v);
        stage_eight(staging, i / eights, i % eights, v, 1.0f, i < staging.rows * eights);
    });
}

// ---- a step's arithmetic

// A selector's bit 3 repeats the sign of the byte it picks: 0 in these tables. So a code finds its entry in one table and
// 0 in the other.
__device__ inline u32 lookup(u32 low, u32 high, u32 codes) {
    u32 out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(codes));
    return out;
}

struct Tables {
    u32 plus, minus;
    static constexpr u32 PLUS = 0x18141210u, MINUS = 0x00040608u;  // the upper halves

    // A zero that the compiler cannot see keeps the lower halves in registers: constants would be moved there again
    // before every lookup.
    __device__ inline Tables() {
        u32 lane;
        asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(lane));
        u32 zero = lane ^ 1u << threadIdx.x % 32;
        plus = 0x0f0e0d0cu ^ zero;
        minus = 0x090a0b0cu ^ zero;
    }

    // Eight codes of a word: even columns, odd columns; the two tables' entries apart, one of each pair 0.
    __device__ inline void unpack(u32 word, u32* even, u32* odd) const {
        u32 other = word ^ 0x88888888u;
        even[0] = lookup(plus, PLUS, word);
        even[1] = lookup(minus, MINUS, other);
        odd[0] = lookup(plus, PLUS, word >> 16);
        odd[1] = lookup(minus, MINUS, other >> 16);
    }
};

__device__ inline void mma_first(int* d, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

__device__ inline void mma(int* d, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What a lane reads of x: zeros but where its column of B belongs to its own t.
struct Reader {
    u32 codes, terms, own;
    uint4 held;  // stays zero where it must

    __device__ inline explicit Reader(const Staging& staging) : held(make_uint4(0, 0, 0, 0)) {
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        own = g / 2 == t;
        codes = shared_address(staging.bytes) + t * 64 + g % 2 * 32;
        terms = shared_address(staging.bytes) + staging.rows * staging.pitch + t * 16;
    }

    __device__ inline uint4 block(u32 offset) { return at(codes + offset); }
    __device__ inline uint4 at(u32 address) {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];}"
                     : "+r"(held.x), "+r"(held.y), "+r"(held.z), "+r"(held.w)
                     : "r"(address), "r"(own));
        return held;
    }

    // The correction and the power of two.
    __device__ inline uint2 block_terms(u32 offset) const {
        uint2 v;
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(terms + offset));
        return v;
    }
};

// The scales of two neighbouring blocks, times 2^-120.
__device__ inline float block_scale(u32 two, int which) {
    return bits_f32((which ? two << 12 : two << 20) & 0x07f00000u);
}

// Meets one step with NT staged rows, `offset` bytes into each. The tables' entries of a code meet x one after the other
// where a tile has 16 outputs, side by side as outputs g and g + 8 where it has 8.
template <int OUTPUTS, int NT>
__device__ inline void meet(const Tables& tables, const uint4* codes, const u32* blocks, Reader& x, u32 offset, u32 pitch,
                            float (*sums)[OUTPUTS / 8]) {
    constexpr int HALVES = OUTPUTS == 16 ? 1 : 2;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            u32 a[2][2][4];  // by word, then by table
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 even[2], odd[2];
                tables.unpack((&codes[h].x)[2 * j + i], even, odd);
                a[i][0][0] = even[0], a[i][0][2] = odd[0];
                if (OUTPUTS == 8) {
                    a[i][0][1] = even[1], a[i][0][3] = odd[1];
                } else {
                    a[i][1][0] = even[1], a[i][1][2] = odd[1];
                    tables.unpack((&codes[1].x)[2 * j + i], even, odd);
                    a[i][0][1] = even[0], a[i][0][3] = odd[0];
                    a[i][1][1] = even[1], a[i][1][3] = odd[1];
                }
            }
#pragma unroll
            for (int r = 0; r < NT; r++) {
                u32 at = offset + h * 256 + r * pitch;
                uint4 b = x.block(at + j * 16);
                uint2 terms = x.block_terms(at / 4 + j * 8);
                int d[4];
                mma_first(d, a[0][0], b.x, b.y);
                if (OUTPUTS == 16) mma(d, a[0][1], b.x, b.y);
                mma(d, a[1][0], b.z, b.w);
                if (OUTPUTS == 16) mma(d, a[1][1], b.z, b.w);
                float power = bits_f32(terms.y);
                int correction = int(terms.x);
                if (OUTPUTS == 8) {
                    int fine = d[1] + d[3] + correction;
                    sums[r][0] += float((d[0] + d[2]) * 256 + fine) * (block_scale(blocks[h], j) * power);
                } else {
                    sums[r][0] += float(d[0] * 256 + (d[1] + correction)) * (block_scale(blocks[0], j) * power);
                    sums[r][OUTPUTS / 8 - 1] += float(d[2] * 256 + (d[3] + correction)) * (block_scale(blocks[1], j) * power);
                }
            }
        }
    }
}
