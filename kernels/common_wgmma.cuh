// Hopper's asynchronous products (wgmma, sm_90a only) and the barriers that go with them.
//
// sums[N / 8][4] += a (64 outputs by 16 columns) times b (16 columns by N rows). Lane (g, t) of warp w holds outputs
// 16w + g and + 8 in elements 0 1 and 2 3, rows 8j + 2t and the next. `a` lies in registers as in common_mma.cuh or in shared
// memory, b in shared memory.
#pragma once
#include "common_mma.cuh"

#define SUMS_8(I) "+f"(d[I][0]), "+f"(d[I][1]), "+f"(d[I][2]), "+f"(d[I][3])
#define SUMS_16(I) SUMS_8(I), SUMS_8(I + 1)
#define SUMS_32(I) SUMS_16(I), SUMS_16(I + 2)
#define SUMS_48(I) SUMS_32(I), SUMS_16(I + 4)
#define SUMS_64(I) SUMS_32(I), SUMS_32(I + 4)
#define SUMS_80(I) SUMS_64(I), SUMS_16(I + 8)
#define SUMS_96(I) SUMS_64(I), SUMS_32(I + 8)
#define SUMS_112(I) SUMS_64(I), SUMS_48(I + 8)
#define SUMS_128(I) SUMS_64(I), SUMS_64(I + 8)
#define SUMS_160(I) SUMS_128(I), SUMS_32(I + 16)
#define SUMS_192(I) SUMS_128(I), SUMS_64(I + 16)
#define SUMS_256(I) SUMS_128(I), SUMS_128(I + 16)

#define PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PLACES_32 PLACES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PLACES_48 PLACES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define PLACES_64 PLACES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define PLACES_80 PLACES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define PLACES_96 PLACES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define PLACES_112 PLACES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define PLACES_128 PLACES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define PLACES_144 PLACES_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define PLACES_160 PLACES_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define PLACES_176 PLACES_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define PLACES_192 PLACES_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define PLACES_208 PLACES_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define PLACES_224 PLACES_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define PLACES_256                                                                              \
    PLACES_224 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124" \
               ", %125, %126, %127"

// FRESH sums forget what they held. ACROSS: neighbours of the operand in memory are rows (of a: outputs), not columns. The
// operands' numbers follow those of the sums.
template <int N, bool FRESH, bool A_ACROSS = false, bool B_ACROSS = false>
__device__ inline void wgmma_shared(float (*d)[4], u64 a, u64 b);

template <int N, bool ACROSS>
__device__ inline void wgmma(float (*d)[4], const u32* a, u64 b);

#define WGMMA_SHARED(N, A, B, KEEP, A_ACROSS, B_ACROSS)                                                  \
    template <>                                                                                          \
    __device__ inline void wgmma_shared<N, !KEEP, A_ACROSS, B_ACROSS>(float (*d)[4], u64 a, u64 b) {     \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" PLACES_##N "}, %" #A   \
                     ", %" #B ", " #KEEP ", 1, 1, " #A_ACROSS ", " #B_ACROSS ";"                         \
                     : SUMS_##N(0)                                                                       \
                     : "l"(a), "l"(b));                                                                  \
    }
WGMMA_SHARED(16, 8, 9, 1, 0, 0)
WGMMA_SHARED(32, 16, 17, 1, 0, 0)
WGMMA_SHARED(64, 32, 33, 1, 0, 0)
WGMMA_SHARED(96, 48, 49, 1, 0, 0)
WGMMA_SHARED(128, 64, 65, 1, 0, 0)
WGMMA_SHARED(160, 80, 81, 1, 0, 0)
WGMMA_SHARED(192, 96, 97, 1, 0, 0)
WGMMA_SHARED(32, 16, 17, 0, 0, 0)
WGMMA_SHARED(64, 32, 33, 0, 0, 0)
WGMMA_SHARED(128, 64, 65, 0, 0, 0)
WGMMA_SHARED(64, 32, 33, 0, 0, 1)
WGMMA_SHARED(64, 32, 33, 1, 0, 1)
WGMMA_SHARED(64, 32, 33, 1, 1, 1)

#define WGMMA(N, A0, A1, A2, A3, B, ACROSS)                                                              \
    template <>                                                                                          \
    __device__ inline void wgmma<N, ACROSS>(float (*d)[4], const u32* a, u64 b) {                        \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" PLACES_##N "}, {%" #A0 \
                     ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, " #ACROSS ";"                   \
                     : SUMS_##N(0)                                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                              \
    }
WGMMA(16, 8, 9, 10, 11, 12, 0)
WGMMA(32, 16, 17, 18, 19, 20, 0)
WGMMA(48, 24, 25, 26, 27, 28, 0)
WGMMA(64, 32, 33, 34, 35, 36, 0)
WGMMA(80, 40, 41, 42, 43, 44, 0)
WGMMA(96, 48, 49, 50, 51, 52, 0)
WGMMA(112, 56, 57, 58, 59, 60, 0)
WGMMA(128, 64, 65, 66, 67, 68, 0)
WGMMA(32, 16, 17, 18, 19, 20, 1)
WGMMA(64, 32, 33, 34, 35, 36, 1)
WGMMA(128, 64, 65, 66, 67, 68, 1)
WGMMA(256, 128, 129, 130, 131, 132, 1)

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Makes what this thread wrote to shared memory visible to the tensor cores, after the next barrier.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Where an operand lies: rows of 128 bytes, the 16-byte pieces of row r exchanged by r % 8, eight rows in 1,024 bytes.
// `next` is where 64 more elements of an operand read across begin, in bytes.
__device__ inline u64 rows_descriptor(u32 address, u32 next = 16) {
    return u64(address >> 4) | u64(next >> 4) << 16 | u64(64) << 32 | u64(1) << 62;
}

// The same for rows of 64 bytes, whose pieces are exchanged by r / 2 % 4, eight rows in 512 bytes.
__device__ inline u64 half_rows_descriptor(u32 address) { return u64(address >> 4) | u64(1) << 16 | u64(32) << 32 | u64(2) << 62; }

// Stores four 8x8 matrices, turned over: a lane names one of their 32 rows.
__device__ inline void store_matrices(u32 to, const u32* v) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]),
                 "r"(v[3])
                 : "memory");
}

__device__ inline void store_matrices_upright(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ inline void store_shared(u32 to, const u32* v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

__device__ inline void copy_async_far(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// ---- barriers in shared memory, by address: a phase ends once `count` have arrived

__device__ inline void barrier_begin(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ inline void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives once this thread's copies so far are there.
__device__ inline void copy_arrive(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of the phase of this parity.
__device__ inline void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; @!done bra again;}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// A meeting of `threads` threads of whole warps of the block, others pass by.
__device__ inline void meet(u32 number, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

template <int REGISTERS>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
