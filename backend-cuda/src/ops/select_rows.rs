//! Gathers rows.

use super::{THREADS, line};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::window;
use whipsnake_core::error::Result;
use whipsnake_core::ops::SelectRows;

pub(crate) fn select_rows(cuda: &Cuda, op: &SelectRows<Cuda>) -> Result<()> {
    let mut args = Args::new();
    args.push(window(&op.x)).push(window(&op.indices)).push(window(&op.out));
    cuda.launch_early("select_rows", "select_rows", line(op.out.rows(), THREADS), &mut args)
}
