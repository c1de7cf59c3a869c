//! The gated norm of a Mamba2 mixer.

use super::{line, warps_for};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{narrow, pointer, window};
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
    let shape = line(rows * op.groups, warps_for(cols / op.groups));
    cuda.launch_early("gated_rms_norm", "gated_rms_norm", shape, &mut args)
}
