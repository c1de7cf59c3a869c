//! Pointwise functions.

use super::{MANY_ROWS, elements, function, walk};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{Window, in_fours, window};
use bytemuck::Zeroable;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Activate;

pub(crate) fn activate(cuda: &Cuda, op: &Activate<Cuda>) -> Result<()> {
    let count = elements(&op.out);
    let mut args = Args::new();
    args.push(window(&op.x)).push(op.gate.as_ref().map_or(Window::zeroed(), window));
    args.push(function(op.function)).push(window(&op.out));
    let fits = in_fours(&op.x) && in_fours(&op.out) && op.gate.as_ref().is_none_or(in_fours);
    if cuda.tuned() && op.out.rows() >= MANY_ROWS && fits && on("fours") {
        args.push(count / 4);
        return cuda.launch("activate", "activate_fours", walk(cuda, count / 4), &mut args);
    }
    args.push(count);
    cuda.launch_early("activate", "activate", walk(cuda, count), &mut args)
}
