//! Rotary position embedding.

use super::{THREADS, line};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{narrow, pointer, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Rope;

pub(crate) fn rope(cuda: &Cuda, op: &Rope<Cuda>) -> Result<()> {
    let mut args = Args::new();
    args.push(window(&op.x)).push(pointer(&op.inv_freq)).push(narrow(op.inv_freq.cols()));
    args.push(narrow(op.head_dim)).push(pointer(&op.segments.places));
    cuda.launch("rope", "rope", line(op.x.rows(), THREADS), &mut args)
}
