//! The greedy token of each row, in two stages.

use super::line;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::view::{narrow, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Argmax;

/// Columns that are worth a block.
const PART: usize = 2048;

pub(crate) fn argmax(cuda: &Cuda, op: &Argmax<Cuda>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    let parts = cols.div_ceil(PART).min(1024);
    let partial = cuda.workspace(rows * parts * 8)?;
    let mut args = Args::new();
    args.push(window(&op.x)).push(partial);
    let shape = Shape { grid: [narrow(rows), narrow(parts), 1], threads: 256, shared: 0 };
    cuda.launch_early("argmax", "argmax_parts", shape, &mut args)?;
    let mut args = Args::new();
    args.push(partial).push(narrow(parts)).push(window(&op.out));
    cuda.launch_early("argmax", "argmax_rows", line(rows, 32), &mut args)
}
