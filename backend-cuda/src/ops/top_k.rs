//! Candidates for sampling: rounds of sorted tiles.

use super::line;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::view::{narrow, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::TopK;

/// Keys that one block sorts: `TILE` of `kernels/top_k.cu`.
const TILE: usize = 2048;

pub(crate) fn top_k(cuda: &Cuda, op: &TopK<Cuda>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    let k = op.values.cols();
    // Keys of a round lie behind those of the round before, and the next round's over those again.
    let half = rows * cols.div_ceil(TILE) * k * 8;
    let base = cuda.workspace(2 * half)?;
    let (mut before, mut count, mut side) = (0, cols, 0);
    loop {
        let tiles = count.div_ceil(TILE);
        let after = base + side * half as u64;
        let mut args = Args::new();
        args.push(window(&op.x)).push(before).push(narrow(count)).push(narrow(k)).push(after);
        let shape = Shape { grid: [narrow(rows), narrow(tiles), 1], threads: 1024, shared: 0 };
        cuda.launch("top_k", "top_k_round", shape, &mut args)?;
        (before, count, side) = (after, tiles * k, 1 - side);
        if tiles == 1 {
            break;
        }
    }
    let mut args = Args::new();
    args.push(before).push(narrow(k)).push(window(&op.values)).push(window(&op.indices));
    cuda.launch("top_k", "top_k_store", line(rows, 128), &mut args)
}
