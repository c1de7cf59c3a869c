// Products of few rows: the weight is read once, through a ring of shared memory that runs ahead of the activations.
//
// A tile is 8 outputs. A warp's step takes 128 stored bytes of each of its rows: lane (g = lane / 4, t = lane % 4) holds
// two 16-byte pieces of output g, 64 bytes apart. They are rows g and g + 8 of the A operand of mma.m16n8k16, and column n
// of B is row n / 2 of the batch at the columns of piece n % 2: so one instruction meets 8 outputs with up to 4 rows, and
// of the sums the first and the last of a lane's four count. Steps of a tile are dealt over `splits` warps of a block,
// whose sums are joined in order. A warp copies its own steps, STAGES - 1 of them ahead and on into its next tile, and
// waits for no other warp but where sums are joined. Sums are f32.
#pragma once
#include "common_mma.cuh"

constexpr u32 VEC_WARPS = 8, VEC_THREADS = 32 * VEC_WARPS;
constexpr u32 STAGES = 4, STAGE = 1024 + 128;  // a step's codes and block scales, bytes

// Pieces of 8 columns of activations that one 16-byte piece of the weight meets.
template <int FORMAT>
constexpr u32 PARTS = COLUMNS<FORMAT> / 8;

// Columns before step `step`.
template <int FORMAT>
__device__ inline u32 column(u32 step) {
    return step * 8 * COLUMNS<FORMAT>;
}

// Asks for what is read later, and written by no kernel that may still run.
__device__ inline void prefetch(const void* from) { asm volatile("prefetch.global.L1 [%0];" ::"l"(from)); }

// ---- the weight

// Keeps a value in its register: the compiler would rather work it out anew in every step, which costs more than the
// product does.
__device__ inline void keep(u32& v) { asm volatile("" : "+r"(v)); }
template <class T>
__device__ inline void keep(T*& v) {
    asm volatile("" : "+l"(v));
}

// What a warp streams: steps of one tile after the other. NVFP4 scales of a step are whole 4-byte words of every row.
template <int FORMAT>
struct Stream {
    const Bank& w;
    u64 matrix;        // rows before the expert's
    const u8* data;    // this lane's pieces of the tile being copied
    const u8* scales;  // this lane's word of its scales
    u32 pieces, words;    // 16-byte pieces and words of scales of a row from this lane's first on
    u32 to, from, block;  // in the ring: where this lane's next piece goes, its oldest piece and its oldest scales
    u32 end;

    __device__ inline Stream(const Bank& weight, u32 expert, char* memory)
        : w(weight), matrix(u64(expert) * weight.rows) {
        u32 lane = threadIdx.x % 32, t = lane % 4, ring = shared_address(memory) + threadIdx.x / 32 * (STAGES * STAGE);
        pieces = w.cols / COLUMNS<FORMAT> > t ? w.cols / COLUMNS<FORMAT> - t : 0;
        words = w.cols / 64 > lane / 8 ? w.cols / 64 - lane / 8 : 0;
        to = from = ring + lane * 16;
        block = ring + 1024 + t / 2 * 32 + lane / 4 * 4 + t % 2 * 2;
        end = to + STAGES * STAGE;
        keep(pieces), keep(words), keep(to), keep(from), keep(block), keep(end);
    }

    // Turns to the tile that begins at `output`.
    __device__ inline void open(u32 output) {
        u32 lane = threadIdx.x % 32;
        u32 row = min(output + lane / 4, w.rows - 1);
        if (FORMAT != W_NVFP4) {
            data = w.data + (matrix + row) * (u64(w.cols) * 16 / COLUMNS<FORMAT>) + lane % 4 * 16;
            keep(data);
            return;
        }
        data = w.data + code_place(w, matrix, row, lane % 4 * 2);
        scales = w.scales + scale_place(w, matrix, min(output + lane % 8, w.rows - 1), lane / 8 * CHUNK);
        keep(data), keep(scales);
    }

    // Queues one step; an empty one where there is none.
    __device__ inline void copy(u32 step, bool there) {
        if (there) {
            // From one step's scales to the next one's, in whole stripes; and codes: half of it is the other piece.
            constexpr u32 pace = 4 * CHUNK * STRIPE, stride = FORMAT == W_NVFP4 ? 8 * pace : 128;
            const u8* piece = data + step * stride;
            copy_async(to, piece, step * 8 < pieces ? 16 : 0);
            copy_async(to + 512, piece + stride / 2, step * 8 + 4 < pieces ? 16 : 0);
            if (FORMAT == W_NVFP4) {
                u32 lane = threadIdx.x % 32;
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 1024 - lane * 12),
                             "l"(scales + step * pace), "r"(step * 4 < words ? 4 : 0)
                             : "memory");
            }
        }
        copy_commit();
        to += STAGE;
        if (to == end) to -= STAGES * STAGE;
    }

    // The oldest step, into registers.
    __device__ inline void take(uint4* piece, u32* blocks) {
        copy_wait<STAGES - 2>();
        __syncwarp();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            piece[h] = load_shared(from + h * 512);
            if (FORMAT == W_NVFP4) {
                blocks[h] = load_shared_u16(block + h * 64);
            }
        }
        from += STAGE;
        block += STAGE;
        if (from == end) {
            from -= STAGES * STAGE;
            block -= STAGES * STAGE;
        }
    }
};

// Meets one step with 4 * NT rows; `x(part, j)` gives a lane its 8 columns of row g / 2 + 4 j.
template <int FORMAT, int NT, class X>
__device__ inline void multiply(const uint4* pieces, const u32* blocks, float (*sums)[4], X x) {
#pragma unroll
    for (u32 part = 0; part < PARTS<FORMAT>; part++) {
        uint4 rows[NT];
#pragma unroll
        for (u32 j = 0; j < NT; j++) rows[j] = x(part, j);
        u32 low[4], high[4], a[4];
        const u32 words = 4 / PARTS<FORMAT> * part;
        dequantise<FORMAT>(&pieces[0].x + words, block_scale(u8(blocks[0] >> (part / 2 * 8))), low);
        dequantise<FORMAT>(&pieces[1].x + words, block_scale(u8(blocks[1] >> (part / 2 * 8))), high);
#pragma unroll
        for (int q = 0; q < 2; q++) {
            fragment(low, high, q, a);
#pragma unroll
            for (u32 j = 0; j < NT; j++) mma(sums[j], a, (&rows[j].x)[2 * q], (&rows[j].x)[2 * q + 1]);
        }
    }
}

// ---- staged activations: pieces of 8 bf16 columns in shared memory, in the order in which lanes read them

// Pieces of one staged row.
template <int FORMAT>
__device__ inline u32 row_pieces(u32 cols) {
    return (cols + 8 * COLUMNS<FORMAT> - 1) / (8 * COLUMNS<FORMAT>) * 8 * PARTS<FORMAT>;
}

// Where columns 8 * piece .. + 7 of a row lie.
template <int FORMAT>
__device__ inline u32 staged(u32 piece) {
    constexpr u32 P = PARTS<FORMAT>;
    return piece / (8 * P) * (8 * P) + piece % P * 8 + piece / P % 8;
}

// Stages `count` rows of bf16 that lie `row(i)` apart in memory, zeros past `cols`.
template <int FORMAT, class ROW>
__device__ inline void stage_rows(uint4* staging, u32 count, u32 cols, ROW row) {
    u32 pitch = row_pieces<FORMAT>(cols);
    for (u32 i = threadIdx.x; i < count * pitch; i += VEC_THREADS) {
        u32 piece = i % pitch;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (8 * piece < cols) v = *reinterpret_cast<const uint4*>(row(i / pitch) + 8 * piece);
        staging[i / pitch * pitch + staged<FORMAT>(piece)] = v;
    }
}

// ---- blocks

// What a block works through: groups `first, first + stride, ..` below `end`, each of VEC_WARPS / splits tiles; without
// splits (0), of an output a warp (`product_lines`).
struct Groups {
    u32 first, stride, end, splits;

    __device__ inline u32 outputs() const { return splits ? VEC_WARPS / splits * 8 : VEC_WARPS; }
};

// Joins the sums of a group's splits and hands them to `put(output, row, value)`; rows are below 4 * NT. `partial` is not
// written again before the next call but one.
template <int NT, class PUT>
__device__ inline void join(const float (*sums)[4], u32 splits, u32 group, u32 outputs, float* partial, PUT put) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = VEC_WARPS / splits;
#pragma unroll
    for (int j = 0; j < NT; j++) partial[(warp * NT + j) * 32 + lane] = sums[j][0] + sums[j][3];
    __syncthreads();
    for (u32 i = threadIdx.x; i < tiles * NT * 32; i += VEC_THREADS) {
        u32 tile = i / (NT * 32), place = i % (NT * 32), output = (group * tiles + tile) * 8 + place % 32 / 4;
        float sum = 0.0f;
        for (u32 s = 0; s < splits; s++) sum += partial[(tile * splits + s) * NT * 32 + place];
        if (output < outputs) put(output, place / 32 * 4 + place % 4, sum);
    }
}

// out = x weight^T for up to 4 * NT rows. `stage.fill<FORMAT>(staging)` waits for the kernels before and fills the staged
// rows; a lane's rows past `count` are zero. `partial` holds 2 * VEC_WARPS * NT * 32 floats, `ring` VEC_RING bytes.
constexpr u32 VEC_RING = VEC_WARPS * STAGES * STAGE;

template <int FORMAT, int NT, class STAGER, class PUT>
__device__ inline void product_of(const Bank& w, u32 expert, const Groups& groups, u32 count, uint4* staging, char* ring,
                                  float* partial, const STAGER& stager, PUT put) {
    u32 lane = threadIdx.x % 32, g = lane / 4, warp = threadIdx.x / 32;
    u32 splits = groups.splits, sub = warp % splits, tiles = VEC_WARPS / splits, pitch = row_pieces<FORMAT>(w.cols);
    float factor = w.scale[expert] * FACTOR<FORMAT>;
    Stream<FORMAT> stream(w, expert, ring);
    auto output = [&](u32 group) { return (group * tiles + warp / splits) * 8; };
    // The next step to copy. A warp may have no step of a tile.
    bool idle = column<FORMAT>(sub) >= w.cols;
    u32 next_group = groups.first, next_step = sub;
    stream.open(output(next_group));
    auto copy_next = [&]() {
        stream.copy(next_step, !idle && next_group < groups.end);
        next_step += splits;
        if (column<FORMAT>(next_step) >= w.cols) {
            next_step = sub;
            next_group += groups.stride;
            stream.open(output(next_group));
        }
    };
    for (u32 i = 0; i + 1 < STAGES; i++) copy_next();
    stager.template fill<FORMAT>(staging);
    __syncthreads();
    u32 mine = shared_address(staging + g / 2 * pitch + g % 2 * 4 + lane % 4);
    keep(mine);
    u32 side = 0;
    for (u32 group = groups.first; group < groups.end; group += groups.stride, side ^= 1) {
        float sums[NT][4] = {};
        for (u32 step = sub; column<FORMAT>(step) < w.cols; step += splits) {
            uint4 pieces[2];
            u32 blocks[2] = {};
            stream.take(pieces, blocks);
            copy_next();
            multiply<FORMAT, NT>(pieces, blocks, sums, [&](u32 part, u32 j) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (g / 2 + 4 * j >= count) return v;
                asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                             : "r"(mine + j * 64 * pitch + (step * PARTS<FORMAT> + part) * 128));
                return v;
            });
        }
        join<NT>(sums, splits, group, w.rows, partial + side * VEC_WARPS * NT * 32, [&](u32 at, u32 row, float v) {
            if (row < count) put(at, row, v * factor);
        });
    }
    copy_wait<0>();
    __syncthreads();
}

// The same, by the weight's format.
template <int NT, class STAGER, class PUT>
__device__ inline void product_any(const Bank& w, u32 expert, const Groups& groups, u32 count, uint4* staging,
                                   char* ring, float* partial, const STAGER& stager, PUT put) {
    if (w.format == W_NVFP4) product_of<W_NVFP4, NT>(w, expert, groups, count, staging, ring, partial, stager, put);
    else if (w.format == W_BF16) product_of<W_BF16, NT>(w, expert, groups, count, staging, ring, partial, stager, put);
    else if (w.format == W_FP8) product_of<W_FP8, NT>(w, expert, groups, count, staging, ring, partial, stager, put);
}
