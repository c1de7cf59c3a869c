//! The weighted sum of each row's experts.

use super::{StoreArg, THREADS};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::view::{narrow, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::MoeCombine;

pub(crate) fn moe_combine(cuda: &Cuda, op: &MoeCombine<Cuda>) -> Result<()> {
    let [rows, cols] = op.out.shape();
    let mut args = Args::new();
    args.push(window(&op.x))
        .push(window(&op.weights))
        .push(StoreArg::from(op.store))
        .push(window(&op.out));
    let grid = [narrow(rows), narrow(cols).div_ceil(THREADS), 1];
    cuda.launch_early(
        "moe_combine",
        "moe_combine",
        Shape { grid, threads: THREADS, shared: 0 },
        &mut args,
    )
}
