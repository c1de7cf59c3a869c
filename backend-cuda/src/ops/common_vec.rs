//! How products of few rows are dealt over blocks and warps: the host's side of `kernels/common_vec.cuh`.

use super::matmul::tensor_core;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::switches::on;
use crate::view::narrow;
use crate::weight::STRIPE;
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::{Format, Weight};

/// Warps of a block: `VEC_WARPS`.
pub(super) const WARPS: usize = 8;

/// Bytes of a block's ring and of its sums, about: `VEC_RING` and `partial`.
const RING: u32 = 40 << 10;

/// Shared memory of a multiprocessor that blocks may fill.
const MULTIPROCESSOR: u32 = 220 << 10;

/// Outputs of a tile.
pub(super) const TILE: usize = 8;

/// Most rows of one pass over the weight.
const MOST_ROWS: usize = 16;

/// Most rows of the form that streams lines of one output after the other: `product_lines`.
const LINE_ROWS: usize = 4;

/// Outputs of a warp from which on that form is faster: with fewer, every block stages rows for little.
const LINE_OUTPUTS: usize = 2;

/// Staged rows fit the shared memory of every device that the kernels are compiled for.
const MOST_SHARED: usize = 90 << 10;

/// One product's deal.
#[derive(Clone, Copy)]
pub(super) struct Deal {
    /// Warps that share a tile's columns; 0 where a warp streams one output.
    pub splits: u32,
    /// Groups of `WARPS / splits` tiles, or of `WARPS` outputs.
    pub groups: u32,
    /// Bytes of the staged rows.
    pub shared: u32,
    /// Blocks that the device holds at once.
    pub resident: u32,
}

impl Deal {
    /// A product of `rows` rows of `inputs` columns, `columns` of them in 16 stored bytes.
    pub fn new(
        cuda: &Cuda,
        rows: usize,
        [outputs, inputs]: [usize; 2],
        columns: usize,
    ) -> Option<Self> {
        let (steps, count) = (inputs.div_ceil(8 * columns), outputs.div_ceil(TILE));
        let shared = staged(rows, inputs, columns)?;
        let resident = resident(cuda, rows, shared);
        // Tiles are shared out as leaves fewest blocks idle in the last turn, but so that every warp has some steps.
        let turns = |splits: usize| {
            let groups = count.div_ceil(WARPS / splits);
            groups.div_ceil(resident as usize) * WARPS / splits
        };
        let wanted = if turns(WARPS) < turns(WARPS / 2) { WARPS } else { WARPS / 2 };
        let splits = wanted.min((steps + 1).next_power_of_two() / 2).max(1);
        let groups = narrow(count.div_ceil(WARPS / splits));
        Some(Self { splits: narrow(splits), groups, shared, resident })
    }

    /// A product whose warps take an output each.
    pub fn lines(cuda: &Cuda, rows: usize, [outputs, inputs]: [usize; 2]) -> Option<Self> {
        let shared = staged(rows, inputs, 8)?;
        let resident = resident(cuda, rows, shared);
        Some(Self { splits: 0, groups: narrow(outputs.div_ceil(WARPS)), shared, resident })
    }

    /// Blocks for the groups: no more than the device holds at once, which then walk on.
    pub fn blocks(&self) -> u32 {
        self.groups.min(self.resident)
    }

    pub fn shape(&self) -> Shape {
        Shape { grid: [self.blocks(), 1, 1], threads: THREADS, shared: self.shared }
    }
}

/// Whether warps take an output each: of BF16 weights with many outputs, for a few rows.
pub(super) fn streams(cuda: &Cuda, rows: usize, weight: &Weight<Cuda>) -> bool {
    let warps = WARPS * resident(cuda, rows, 0) as usize;
    let many = weight.rows >= LINE_OUTPUTS * warps;
    weight.format == Format::BF16 && many && rows <= LINE_ROWS && on("product_lines")
}

/// Bytes of the staged rows, where they are few and short enough.
fn staged(rows: usize, inputs: usize, columns: usize) -> Option<u32> {
    let bytes = rows * inputs.div_ceil(8 * columns) * 16 * columns;
    (rows <= MOST_ROWS && bytes <= MOST_SHARED).then(|| narrow(bytes))
}

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

/// Blocks that the device holds at once, by their registers and shared memory.
pub(super) fn resident(cuda: &Cuda, rows: usize, shared: u32) -> u32 {
    let by_registers = [4, 3, 2][tiles(rows).ilog2().min(2) as usize];
    by_registers.min(MULTIPROCESSOR / (shared + RING)).max(1) * narrow(cuda.multiprocessors())
}

/// Columns of 16 stored bytes of the weight, where the kernels take the operands: whole stripes and chunks of block scales.
pub(super) fn stored_columns(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
) -> Option<usize> {
    let (_, columns) = tensor_core(cuda, x, weight)?;
    let whole = weight.cols.is_multiple_of(64) && weight.rows.is_multiple_of(STRIPE);
    (weight.format != Format::Nvfp4 || whole).then_some(columns)
}

/// The deal of a product, where the kernels take it: by lines or by tiles.
pub(super) fn deal(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
    lines: bool,
) -> Option<Deal> {
    let columns = stored_columns(cuda, x, weight)?;
    let shape = [weight.rows, weight.cols];
    match lines {
        true => Deal::lines(cuda, x.rows(), shape),
        false => Deal::new(cuda, x.rows(), shape, columns),
    }
}

/// The kernels' NT for so many rows: tiles of four.
pub(super) fn tiles(rows: usize) -> usize {
    rows.div_ceil(4).next_power_of_two()
}
