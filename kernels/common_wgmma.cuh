// Hopper's asynchronous products (wgmma, sm_90a only): sums[N / 8][4] += a (64 outputs by 16 columns) times b (16 columns
// by N rows), a in registers, b in shared memory. Lane (g, t) of warp w holds outputs 16w + g and + 8 in elements 0 1 and
// 2 3, rows 8j + 2t and the next; its part of a is laid out as in common_mma.cuh.
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

template <int N>
__device__ inline void wgmma(float (*d)[4], const u32* a, u64 b);

template <>
__device__ inline void wgmma<16>(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
        : SUMS_16(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ inline void wgmma<32>(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : SUMS_32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ inline void wgmma<48>(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23}, "
        "{%24, %25, %26, %27}, %28, 1, 1, 1, 0;"
        : SUMS_48(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ inline void wgmma<64>(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : SUMS_64(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ inline void wgmma<80>(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, "
        "{%40, %41, %42, %43}, %44, 1, 1, 1, 0;"
        : SUMS_80(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ inline void wgmma<96>(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47}, "
        "{%48, %49, %50, %51}, %52, 1, 1, 1, 0;"
        : SUMS_96(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ inline void wgmma<112>(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55}, "
        "{%56, %57, %58, %59}, %60, 1, 1, 1, 0;"
        : SUMS_112(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ inline void wgmma<128>(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : SUMS_128(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Makes what this thread wrote to shared memory visible to the tensor cores, after the next barrier.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Where b lies: rows of 128 bytes, the 16-byte pieces of row r exchanged by r % 8, eight rows in 1,024 bytes.
__device__ inline u64 rows_descriptor(u32 address) {
    return u64(address >> 4) | u64(1) << 16 | u64(64) << 32 | u64(1) << 62;
}
