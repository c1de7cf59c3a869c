//! Pointwise functions.

use super::{elements, function, walk};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{Window, window};
use bytemuck::Zeroable;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Activate;

pub(crate) fn activate(cuda: &Cuda, op: &Activate<Cuda>) -> Result<()> {
    let count = elements(&op.out);
    let mut args = Args::new();
    args.push(window(&op.x)).push(op.gate.as_ref().map_or(Window::zeroed(), window));
    args.push(function(op.function)).push(window(&op.out)).push(count);
    cuda.launch_early("activate", "activate", walk(cuda, count), &mut args)
}
