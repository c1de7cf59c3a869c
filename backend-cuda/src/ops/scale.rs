//! Scaling in place.

use super::{elements, walk};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::window;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Scale;

pub(crate) fn scale(cuda: &Cuda, op: &Scale<Cuda>) -> Result<()> {
    let count = elements(&op.x);
    let mut args = Args::new();
    args.push(window(&op.x)).push(op.factor).push(count);
    cuda.launch("scale", "scale", walk(cuda, count), &mut args)
}
