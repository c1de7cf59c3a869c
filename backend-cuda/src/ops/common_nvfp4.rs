//! How NVFP4 products of few rows are dealt over blocks: the host's side of `kernels/common_nvfp4.cuh`.

use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::switches::on;
use crate::view::{in_pieces, narrow};
use crate::weight::STRIPE;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Weight};

/// Threads and warps of a block, bytes of a warp's step and stages of its ring, most tiles of a block: `THREADS`, `WARPS`,
/// `STEP`, `STAGES`, `MOST_TILES`.
pub(super) const THREADS: u32 = 32 * WARPS;
const WARPS: u32 = 16;
const STEP: u32 = 1152;
const STAGES: u32 = 4;
const MOST_TILES: usize = 8;

/// Most rows of one pass over the weight.
pub(super) const MOST_ROWS: usize = 8;

/// Shared memory of a block, on Hopper and elsewhere.
const MOST_SHARED: [u32; 2] = [224 << 10, 96 << 10];

/// Whether kernel file `file` is on and takes the weight: block scales are whole words of a row, and whole stripes.
pub(super) fn takes(cuda: &Cuda, file: &str, weight: &Weight<Cuda>) -> bool {
    let sizes = weight.cols.is_multiple_of(64) && weight.rows.is_multiple_of(STRIPE);
    sizes && weight.format == Format::Nvfp4 && cuda.tuned() && on(file) && on("nvfp4")
}

/// Whether the kernels take rows of bf16.
pub(super) fn reads(x: &Tensor<Cuda>) -> bool {
    x.dtype() == DType::BF16 && in_pieces(x)
}

/// The kernels' number of rows.
pub(super) fn padded_rows(rows: usize) -> usize {
    rows.next_power_of_two()
}

/// Bytes of a staged row: `row_pitch`.
pub(super) fn row_pitch(outputs: usize, cols: usize) -> u32 {
    let columns = 2048 / outputs;
    narrow(cols.div_ceil(columns) * 2 * columns)
}

/// Tiles of `outputs` outputs over blocks.
#[derive(Clone, Copy)]
pub(super) struct Deal {
    pub blocks: u32,
    /// Tiles of the blocks that have most.
    pub runs: u32,
}

impl Deal {
    /// `tiles` over `share` blocks, or over more where they would have too many.
    pub fn new(tiles: usize, share: usize) -> Self {
        let blocks = share.max(tiles.div_ceil(MOST_TILES)).min(tiles).max(1);
        Self { blocks: narrow(blocks), runs: narrow(tiles.div_ceil(blocks)) }
    }

    /// The launch: each block stages `rows` rows of `pitch` bytes and has `extra` bytes for itself. None where that does not
    /// fit.
    pub fn shape(&self, cuda: &Cuda, rows: usize, [pitch, extra]: [u32; 2]) -> Option<Shape> {
        let shared = WARPS * STAGES * STEP + narrow(rows) * (pitch + pitch / 4) + extra;
        let fits = shared <= MOST_SHARED[usize::from(!cuda.hopper())];
        let grid = [self.blocks, 1, 1];
        fits.then_some(Shape { grid, threads: THREADS, shared })
    }
}

/// Bytes of the sums of a block's tiles: `Sums` of the kernels.
pub(super) fn sums([rows, outputs]: [usize; 2], tiles: u32) -> u32 {
    tiles * WARPS * narrow(rows * outputs) * 4
}
