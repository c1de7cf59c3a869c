//! The gated norm of a Mamba2 mixer.

use super::{MANY_ROWS, line, warps_for};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{in_fours, narrow, pointer, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{GateOrder, GatedRmsNorm};

pub(crate) fn gated_rms_norm(cuda: &Cuda, op: &GatedRmsNorm<Cuda>) -> Result<()> {
    let [rows, cols] = op.y.shape();
    let mut args = Args::new();
    args.push(window(&op.y))
        .push(window(&op.z))
        .push(pointer(&op.weight))
        .push(narrow(op.groups))
        .push(op.eps);
    args.push(u32::from(op.order == GateOrder::GateThenNorm)).push(window(&op.out));
    let width = cols / op.groups;
    let fits = [&op.y, &op.z, &op.out].into_iter().all(in_fours);
    let sizes = width.is_multiple_of(4) && width <= 512 && pointer(&op.weight).is_multiple_of(16);
    if cuda.tuned() && rows >= MANY_ROWS && fits && sizes && on("fours") {
        let count = rows * op.groups;
        args.push(narrow(count));
        // Few groups spread over all multiprocessors.
        let warps = count.div_ceil(4 * cuda.multiprocessors()).clamp(1, 8);
        let shape = line(count.div_ceil(warps), 32 * narrow(warps));
        return cuda.launch_early("gated_rms_norm", "gated_rms_norm_fours", shape, &mut args);
    }
    let shape = line(rows * op.groups, warps_for(width));
    cuda.launch_early("gated_rms_norm", "gated_rms_norm", shape, &mut args)
}
