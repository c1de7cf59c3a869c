//! Sorts the router's choices by expert.

use super::line;
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{narrow, pointer, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::MoeGroup;

pub(crate) fn moe_group(cuda: &Cuda, op: &MoeGroup<Cuda>) -> Result<()> {
    let pairs = op.ids.rows() * op.ids.cols();
    // A warp for every `SPAN` of the kernel.
    let threads = narrow(pairs.div_ceil(128) * 32).clamp(32, 1024);
    let mut args = Args::new();
    args.push(window(&op.ids))
        .push(narrow(pairs))
        .push(pointer(&op.groups.order))
        .push(pointer(&op.groups.offsets));
    cuda.launch_early("moe_group", "moe_group", line(op.experts, threads), &mut args)
}
