//! The next token of each row: a block a row.

use super::line;
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{Window, window};
use bytemuck::Zeroable;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Draw;

pub(crate) fn draw(cuda: &Cuda, op: &Draw<Cuda>) -> Result<()> {
    let columns = op.columns.as_ref().map_or_else(Window::zeroed, window);
    let mut args = Args::new();
    args.push(window(&op.x)).push(columns).push(window(&op.rows)).push(window(&op.out));
    cuda.launch_early("draw", "draw", line(op.x.rows(), 1024), &mut args)
}
