//! The weighted sum of each row's experts.

use super::{MANY_ROWS, StoreArg, THREADS};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{in_fours, narrow, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::MoeCombine;

pub(crate) fn moe_combine(cuda: &Cuda, op: &MoeCombine<Cuda>) -> Result<()> {
    combine(cuda, op, 0, 0)
}

/// Adds so many parts of sums that lie at `beside`, `[parts, rows, cols] f32`.
pub(super) fn combine(cuda: &Cuda, op: &MoeCombine<Cuda>, beside: u64, parts: u32) -> Result<()> {
    let [rows, cols] = op.out.shape();
    let mut args = Args::new();
    args.push(window(&op.x))
        .push(window(&op.weights))
        .push(StoreArg::from(op.store))
        .push(window(&op.out))
        .push(beside)
        .push(parts);
    let fours =
        cuda.tuned() && rows >= MANY_ROWS && in_fours(&op.x) && in_fours(&op.out) && on("fours");
    let (name, wide) = if fours { ("moe_combine_fours", 4) } else { ("moe_combine", 1) };
    let grid = [narrow(rows), narrow(cols).div_ceil(THREADS * wide), 1];
    let shape = Shape { grid, threads: THREADS, shared: 0 };
    cuda.launch_early("moe_combine", name, shape, &mut args)
}
