// Runs a program of phases for one row in one launch (common_program.cuh).
//
// phases [count], table [1] and places [1] the row's or null where no phase wants them, arrivals [2] zeros, which it leaves
// as zeros. One block of 16 warps a multiprocessor, all of them resident at once.
#include "common_program_choice.cuh"
#include "common_program_products.cuh"

// One token of a segment of its own; two rows of a head a warp.
__device__ inline void run_scan(const Phase& phase, const Meeting& meeting, const Kept& kept) {
    constexpr int ROWS = 2;
    const Scan& p = phase.scan;
    u32 each = (p.head_dim + ROWS - 1) / ROWS, all = p.heads * each, item = blockIdx.x * WARPS + threadIdx.x / 32;
    Rows<u16, ROWS, 1> rows = {p, kept.segment, 0, 0};
    bool waited = false;
#pragma unroll 1
    do {
        bool there = item < all && rows.segment.len > 0;
        float a_log = 0.0f, skip = 0.0f, bias = 0.0f;
        if (there) {
            rows.head = over(item, each), rows.first = (item - rows.head * each) * ROWS;
            a_log = p.params[rows.head], skip = p.params[p.heads + rows.head], bias = p.params[2 * p.heads + rows.head];
            rows.fetch();
        }
        if (!waited) meeting.wait();
        waited = true;
        if (there) rows.scan(-expf(a_log), skip, bias);
        item += gridDim.x * WARPS;
    } while (item < all);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) program(const Phase* phases, u32 count, const Segment* table,
                                                                  const RowPlace* places, u32* arrivals) {
    extern __shared__ __align__(16) char memory[];
    __shared__ Phase slots[SLOTS];
    __shared__ Kept kept;
    constexpr u32 WORDS = sizeof(Phase) / 4;
    static_assert(WORDS <= THREADS, "a thread moves one word of a phase");
    auto word = [&](u32 phase) { return reinterpret_cast<const u32*>(phases + phase)[threadIdx.x]; };
    auto keep = [&](u32 phase, u32 v) { reinterpret_cast<u32*>(slots + phase % SLOTS)[threadIdx.x] = v; };
    for (u32 i = 0; i + 1 < SLOTS && i < count && threadIdx.x < WORDS; i++) keep(i, word(i));
    if (threadIdx.x == 0 && table) kept.segment = table[0], kept.place = places[0];
    __syncthreads();
    Ring ring(memory, slots, kept, count);
    Meeting meeting = {arrivals};
    for (u32 now = 0; now < count; now++) {
        const Phase& phase = slots[now % SLOTS];
        bool more = now + SLOTS - 1 < count && threadIdx.x < WORDS;
        u32 next = more ? word(now + SLOTS - 1) : 0;
        ring.fill(now);
        if (phase.kind == PRODUCTS) {
            run_products(phase, now > 0 ? &slots[(now - 1) % SLOTS] : nullptr, now, meeting, ring, kept, memory + RING);
        } else if (phase.kind == SCAN) {
            run_scan(phase, meeting, kept);
        } else {
            run_choice(phase, meeting, kept);
        }
        if (more) keep(now + SLOTS - 1, next);
        __syncthreads();
        if (phase.arrive) meeting.arrive();
    }
    meeting.end();
}
