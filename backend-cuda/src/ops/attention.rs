//! Attention over the cache: parts of the positions for few rows, tiles for many (Hopper's or everyone's), the plain form for
//! everything else.

use super::one;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::switches::on;
use crate::view::{Window, in_pieces, narrow, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Attention;
use whipsnake_core::tensor::DType;

/// Twin of `Heads` in `kernels/common_attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Heads {
    q: Window,
    k: Window,
    v: Window,
    out: Window,
    places: u64,
    context: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    scale: f32,
    rows: u32,
    table: u64,
    partial: u64,
    parts: u32,
    unused: u32,
}

/// Threads of a block of every form.
const THREADS: u32 = 128;

/// Rows or heads that one product takes.
const PRODUCT_ROWS: usize = 16;

/// Pairs of a row and a head that a block of the tile form takes.
const TILE_PAIRS: usize = 64;

/// The same of Hopper's form.
const WIDE_PAIRS: usize = 128;

/// Positions that a block visits in one turn.
const POSITIONS: usize = 64;

/// Blocks of the form for few rows that a multiprocessor holds.
const BLOCKS: usize = 2;

/// Most parts of one row's positions, and threads of a block that joins them: `MAX_PARTS` of the kernel.
const MAX_PARTS: usize = 512;

/// Segments up to this long are taken row by row, in parts of their positions.
const SHORT: usize = 4;

/// Whether the tensor-core forms take the operands.
fn tensor_core(cuda: &Cuda, op: &Attention<Cuda>) -> bool {
    let fits = |tensor| in_pieces(tensor) && tensor.dtype() == DType::BF16;
    let sizes = op.head_dim.is_multiple_of(8) && op.head_dim <= 128;
    cuda.tuned() && sizes && [&op.q, &op.cache.k, &op.cache.v, &op.out].into_iter().all(fits)
}

/// Whether Hopper's form takes the operands, many rows of a segment.
fn wide(cuda: &Cuda, op: &Attention<Cuda>) -> bool {
    let fits = |tensor| in_pieces(tensor) && tensor.dtype() == DType::BF16;
    let sizes = op.head_dim.is_multiple_of(8) && op.head_dim <= 256 && op.scale > 0.0;
    let operands = [&op.q, &op.cache.k, &op.cache.v, &op.out].into_iter().all(fits);
    let many = op.segments.shape.longest > SHORT && on("attention_sm90");
    cuda.tuned() && cuda.hopper() && sizes && operands && many
}

pub(crate) fn attention(cuda: &Cuda, op: &Attention<Cuda>) -> Result<()> {
    let heads = Heads {
        q: window(&op.q),
        k: window(&op.cache.k),
        v: window(&op.cache.v),
        out: window(&op.out),
        places: pointer(&op.segments.places),
        context: narrow(op.cache.context),
        heads: narrow(op.heads()),
        kv_heads: narrow(op.kv_heads()),
        head_dim: narrow(op.head_dim),
        scale: op.scale,
        rows: narrow(op.q.rows()),
        table: pointer(&op.segments.table),
        partial: 0,
        parts: 1,
        unused: 0,
    };
    if wide(cuda, op) {
        return tiles(cuda, op, heads);
    }
    if !tensor_core(cuda, op) {
        let grid = [heads.rows, heads.heads.div_ceil(4), 1];
        return cuda.launch(
            "attention",
            "attention_plain",
            Shape { grid, threads: THREADS, shared: 0 },
            &mut one(heads),
        );
    }
    let blocks = op.head_dim.div_ceil(64);
    if op.segments.shape.longest <= SHORT {
        return decode(cuda, op, heads, blocks);
    }
    let group = op.heads() / op.kv_heads();
    let pairs = (op.segments.shape.longest * group).div_ceil(TILE_PAIRS);
    let grid = [narrow(pairs), heads.kv_heads, narrow(op.segments.shape.segments)];
    // Two tiles of keys and values: `STAGE` of the kernel.
    let shared = narrow(2 * POSITIONS * (2 * 128 * blocks + 64 + 16));
    let shape = Shape { grid, threads: THREADS, shared };
    cuda.launch("attention_tile", &format!("attention_tile_{blocks}"), shape, &mut one(heads))
}

/// Hopper's form.
fn tiles(cuda: &Cuda, op: &Attention<Cuda>, heads: Heads) -> Result<()> {
    let pairs = op.segments.shape.longest * (op.heads() / op.kv_heads());
    let blocks = op.head_dim.div_ceil(64).next_power_of_two();
    // `TOKENS` and `BYTES` of the kernel: queries, two tiles of keys and of values.
    let tokens = if blocks > 2 { 32 } else { 128 };
    let shared = blocks * 128 * (WIDE_PAIRS + 4 * tokens);
    let grid =
        [narrow(pairs.div_ceil(WIDE_PAIRS)), heads.kv_heads, narrow(op.segments.shape.segments)];
    let shape = Shape { grid, threads: 384, shared: narrow(shared) };
    let name = format!("attention_sm90_{blocks}");
    cuda.launch("attention_sm90", &name, shape, &mut one(heads))
}

fn decode(cuda: &Cuda, op: &Attention<Cuda>, mut heads: Heads, blocks: usize) -> Result<()> {
    let rows = op.q.rows();
    let products = op.kv_heads() * (op.heads() / op.kv_heads()).div_ceil(PRODUCT_ROWS);
    let most = op.segments.shape.context.div_ceil(POSITIONS).max(1);
    let blocks_at_once = BLOCKS * cuda.multiprocessors();
    let parts = (blocks_at_once / (rows * products)).clamp(1, most.min(MAX_PARTS));
    heads.parts = narrow(parts);
    heads.partial = cuda.workspace(rows * op.heads() * parts * (op.head_dim + 2) * 4)?;
    // A warp's sums of 16 heads, for each of four warps.
    let shared = narrow(4 * PRODUCT_ROWS * (64 * blocks + 2) * 4);
    let grid = [heads.rows, narrow(products), heads.parts];
    let shape = Shape { grid, threads: THREADS, shared };
    cuda.launch_early("attention", &format!("attention_decode_{blocks}"), shape, &mut one(heads))?;
    let grid = [heads.rows, heads.heads, 1];
    cuda.launch_early(
        "attention",
        "attention_combine",
        Shape { grid, threads: narrow(MAX_PARTS), shared: 0 },
        &mut one(heads),
    )
}
