//! Root-mean-square norms.

use super::{MANY_ROWS, line, warps_for};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{in_fours, narrow, pointer, window};
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
    let width = cols / op.groups;
    let fits = in_fours(&op.x) && in_fours(&op.out) && pointer(&op.weight).is_multiple_of(16);
    if cuda.tuned()
        && rows >= MANY_ROWS
        && fits
        && width.is_multiple_of(4)
        && width <= 4096
        && on("fours")
    {
        // At most four fours a thread.
        let threads = narrow(width.div_ceil(12).next_multiple_of(32).clamp(32, 256));
        return cuda.launch_early(
            "rms_norm",
            "rms_norm_fours",
            line(rows * op.groups, threads),
            &mut args,
        );
    }
    let shape = line(rows * op.groups, warps_for(width));
    cuda.launch_early("rms_norm", "rms_norm", shape, &mut args)
}
