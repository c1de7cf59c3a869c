// Products of few rows with NVFP4 weights on Hopper: one block a multiprocessor, weights read through rings that do not
// drain between tiles.
//
// A block takes tiles of 16 outputs that follow each other; a tile is `splits` runs of units of 64 columns, and a warp takes
// runs that follow each other. It copies its own weights, STAGES steps ahead, and waits for no other warp before tiles that
// warps share are joined. Runs are summed from zero and joined in order, so that a row's sum does not depend on who computes
// it: equal rows give one answer.
//
// A unit is 512 bytes of codes and 64 of block scales, and units of a tile lie one after the other (`code_place`), so one
// bulk copy brings a step's codes and one its scales. Lane (g = lane / 4, t = lane % 4) holds block t of a unit of outputs
// g and g + 8, the A operand of mma.m16n8k16; row g of eight is column g of B. Rows are staged as they are, 16 bytes apart
// in the banks. Where there are fewer the last one is met again, and not kept.
#pragma once
#include "common_wgmma.cuh"

constexpr u32 WARPS = 16, THREADS = 32 * WARPS, UNIT_CODES = 512, UNIT_SCALES = 64, UNIT = UNIT_CODES + UNIT_SCALES;
constexpr u32 STAGES = 2, RINGS = WARPS * STAGES;  // of a warp's ring; barriers of all rings, behind them that of the rows

// How tiles are cut. Twin of `Cut` in common_few_sm90.rs.
struct Cut {
    u32 tiles, units;          // of a matrix; of a tile
    u32 splits, chunk, step;   // runs of a tile; units of a run, and of a step of the ring
    u32 pitch, rows;           // bytes of a staged row; most rows of a round
    u32 by_tile;               // whether runs of shared tiles are kept by tile, or by the warp a tile begins in
};

// ---- copies that end at a barrier

// Arrives, and expects so many bytes of copies.
__device__ inline void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Multiples of 16 bytes, by one thread.
__device__ inline void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

// This thread's warp, which the compiler then knows to be one for the whole warp.
__device__ inline u32 this_warp() { return __shfl_sync(ALL, threadIdx.x / 32, 0); }

// The block's shared memory: barriers, and how often each has been waited for, a bit each.
struct Barriers {
    u32 at, phases = 0;

    __device__ inline explicit Barriers(const u64* memory) : at(shared_address(memory)) {
        if (threadIdx.x <= RINGS) barrier_begin(at + threadIdx.x * 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __device__ inline u32 ring() const { return at + this_warp() * (STAGES * 8); }
    __device__ inline u32 rows() const { return at + RINGS * 8; }
    __device__ inline void wait_stage(u32 stage) {
        barrier_wait(ring() + stage * 8, phases >> stage & 1);
        phases ^= 1u << stage;
    }
    __device__ inline void wait_rows() {
        barrier_wait(rows(), phases >> STAGES & 1);
        phases ^= 1u << STAGES;
    }
};

// ---- the arithmetic of a unit

// Codes of 8 columns as 4 registers of two columns, smaller by 2^8. A product puts a code's sign and its magnitude where
// bf16 has them at once: fewer instructions than shifting each.
__device__ inline void unpack(u32 word, u32 scale, u32* out) {
    u32 upper = word >> 8;
    out[0] = multiply((word & 0x000f000fu) * 4160u & 0x81c081c0u, scale);
    out[1] = multiply((word & 0x00f000f0u) * 260u & 0x81c081c0u, scale);
    out[2] = multiply((upper & 0x000f000fu) * 4160u & 0x81c081c0u, scale);
    out[3] = multiply((upper & 0x00f000f0u) * 260u & 0x81c081c0u, scale);
}

__device__ inline uint2 load_shared_two(u32 from) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

__device__ inline u32 load_shared_byte(u32 from) {
    u32 v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

// Meets a unit with 8 * NT rows; the addresses are this lane's, and `offset` the unit's in the rows.
template <int NT>
__device__ inline void meet_unit(u32 codes, u32 scales, const u32* rows, u32 offset, float (*sums)[4]) {
    uint2 low = load_shared_two(codes), high = load_shared_two(codes + UNIT_CODES / 2);
    u32 scale[2] = {scale_pair(load_shared_byte(scales)), scale_pair(load_shared_byte(scales + UNIT_SCALES / 2))};
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint4 x[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) x[j] = load_shared(rows[j] + offset + part * 16);
        u32 lows[4], highs[4], a[4];
        unpack((&low.x)[part], scale[0], lows);
        unpack((&high.x)[part], scale[1], highs);
#pragma unroll
        for (int q = 0; q < 2; q++) {
            fragment(lows, highs, q, a);
#pragma unroll
            for (int j = 0; j < NT; j++) mma(sums[j], a, (&x[j].x)[2 * q], (&x[j].x)[2 * q + 1]);
        }
    }
}

// ---- a warp's place in the round's list of runs

struct Place {
    u32 left;            // runs that are still to do
    u32 part, in, item;  // run of the tile, tile of the item, item of the round

    __device__ inline u32 units(const Cut& cut) const { return min(cut.chunk, cut.units - part * cut.chunk); }
    // Goes on to the next run; whether that is in another item.
    __device__ inline bool next(const Cut& cut) {
        left--;
        if (++part < cut.splits) return false;
        part = 0;
        if (++in < cut.tiles) return false;
        in = 0, item++;
        return true;
    }
};

// Where the steps of a run lie.
struct Steps {
    const u8 *codes, *scales;
    __device__ inline Steps() = default;
    // Of a stripe's outputs, from unit `unit` on; `matrix`: rows before the matrix.
    __device__ inline Steps(const Bank& w, u64 matrix, u32 stripe, u32 unit) {
        u64 place = scale_place(w, matrix, stripe * STRIPE, unit * CHUNK);
        codes = w.data + 8 * place, scales = w.scales + place;
    }
};

// Copies a warp's runs ahead; `locate(place)` are the steps of one.
template <class LOCATE>
struct Feed {
    const Cut& cut;
    LOCATE locate;
    Place place;
    Steps ahead;
    u32 units;  // of their run that are still to be copied
    u32 ring, barriers, stage = 0;

    __device__ inline Feed(const Cut& how, LOCATE find, const Place& first, u32 memory, const Barriers& all)
        : cut(how), locate(find), place(first), barriers(all.ring()) {
        ring = memory + this_warp() * (STAGES * cut.step * UNIT);
        seek();
#pragma unroll 1
        for (u32 i = 0; i < STAGES; i++) next();
    }

    __device__ inline u32 at() const { return ring + stage * (cut.step * UNIT); }

    __device__ inline void seek() {
        if (place.left == 0) return;
        ahead = locate(place);
        units = place.units(cut);
    }

    // Queues the next step where there is one, in the oldest one's place.
    __device__ inline void next() {
        if (place.left > 0) {
            u32 count = min(units, cut.step);
            if (threadIdx.x % 32 == 0) {
                u32 barrier = barriers + stage * 8;
                barrier_expect(barrier, count * UNIT);
                copy_bulk(at(), ahead.codes, count * UNIT_CODES, barrier);
                copy_bulk(at() + cut.step * UNIT_CODES, ahead.scales, count * UNIT_SCALES, barrier);
            }
            ahead.codes += count * UNIT_CODES, ahead.scales += count * UNIT_SCALES, units -= count;
            if (units == 0) {
                if (place.next(cut)) seek();
                else units = place.units(cut);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
};

// Meets the steps of a run, whose columns begin `offset` bytes into the rows.
template <int NT, class FEED>
__device__ inline void meet_run(FEED& feed, Barriers& barriers, u32 units, const u32* rows, u32 offset, float (*sums)[4]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll 1
    while (units > 0) {
        u32 count = min(units, feed.cut.step), codes = feed.at() + lane * 8;
        u32 scales = feed.at() + feed.cut.step * UNIT_CODES + lane;
        barriers.wait_stage(feed.stage);
#pragma unroll 1
        for (u32 i = 2; i <= count; i += 2, codes += 2 * UNIT_CODES, scales += 2 * UNIT_SCALES, offset += 256) {
            meet_unit<NT>(codes, scales, rows, offset, sums);
            meet_unit<NT>(codes + UNIT_CODES, scales + UNIT_SCALES, rows, offset + 128, sums);
        }
        if (count % 2 != 0) {
            meet_unit<NT>(codes, scales, rows, offset, sums);
            offset += 128;
        }
        units -= count;
        __syncwarp();
        feed.next();
    }
}
