//! Token embeddings.

use super::{THREADS, line};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{bank, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Embed;

pub(crate) fn embed(cuda: &Cuda, op: &Embed<'_, Cuda>) -> Result<()> {
    let mut args = Args::new();
    args.push(window(&op.tokens)).push(bank(op.table)).push(op.scale).push(window(&op.out));
    cuda.launch("embed", "embed", line(op.out.rows(), THREADS), &mut args)
}
