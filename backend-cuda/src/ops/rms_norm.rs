//! Root-mean-square norms.

use super::{line, warps_for};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{narrow, pointer, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::RmsNorm;

pub(crate) fn rms_norm(cuda: &Cuda, op: &RmsNorm<Cuda>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    let mut args = Args::new();
    args.push(window(&op.x))
        .push(pointer(&op.weight))
        .push(narrow(op.groups))
        .push(op.eps)
        .push(window(&op.out));
    cuda.launch_early(
        "rms_norm",
        "rms_norm",
        line(rows * op.groups, warps_for(cols / op.groups)),
        &mut args,
    )
}
