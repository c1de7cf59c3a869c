//! How products of few rows are dealt over blocks and warps: the host's side of `kernels/common_vec.cuh`.

use super::matmul::tensor_core;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::narrow;
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::Weight;

/// Warps of a block: `VEC_WARPS`.
pub(super) const WARPS: usize = 8;

/// Steps of a warp on their way at once: `DEPTH`.
const DEPTH: usize = 4;

/// Outputs of a tile.
pub(super) const TILE: usize = 8;

/// Most rows of one pass over the weight.
const MOST_ROWS: usize = 16;

/// Staged rows fit the shared memory of every device that the kernels are compiled for.
const MOST_SHARED: usize = 90 << 10;

/// One product's deal.
#[derive(Clone, Copy)]
pub(super) struct Deal {
    /// Warps that share a tile's columns.
    pub splits: u32,
    /// Groups of `WARPS / splits` tiles.
    pub groups: u32,
    /// Bytes of the staged rows.
    pub shared: u32,
}

impl Deal {
    /// A product of `rows` rows of `inputs` columns, `columns` of them in 16 stored bytes.
    pub fn new(rows: usize, outputs: usize, inputs: usize, columns: usize) -> Option<Self> {
        let steps = inputs.div_ceil(8 * columns);
        let splits = steps.div_ceil(DEPTH).next_power_of_two().min(WARPS);
        let groups = outputs.div_ceil(TILE * WARPS / splits);
        let shared = rows * steps * 16 * columns;
        (rows <= MOST_ROWS && shared <= MOST_SHARED).then(|| Self {
            splits: narrow(splits),
            groups: narrow(groups),
            shared: narrow(shared),
        })
    }

    /// Blocks for the groups: no more than the device holds at once, which then walk on.
    pub fn blocks(&self, cuda: &Cuda) -> u32 {
        self.groups.min(resident(cuda))
    }

    pub fn shape(&self, cuda: &Cuda) -> Shape {
        Shape { grid: [self.blocks(cuda), 1, 1], threads: THREADS, shared: self.shared }
    }
}

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

/// Blocks that the device holds at once.
pub(super) fn resident(cuda: &Cuda) -> u32 {
    2 * narrow(cuda.multiprocessors())
}

/// The deal of a product, where the kernels take it.
pub(super) fn deal(cuda: &Cuda, x: &Tensor<Cuda>, weight: &Weight<Cuda>) -> Option<Deal> {
    let (_, columns) = tensor_core(cuda, x, weight)?;
    Deal::new(x.rows(), weight.rows, weight.cols, columns)
}

/// The kernels' NT for so many rows: tiles of four.
pub(super) fn tiles(rows: usize) -> usize {
    rows.div_ceil(4).next_power_of_two()
}
