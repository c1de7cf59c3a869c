//! Scaled addition in place.

use super::{elements, walk};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::window;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Add;

pub(crate) fn add(cuda: &Cuda, op: &Add<Cuda>) -> Result<()> {
    let count = elements(&op.out);
    let mut args = Args::new();
    args.push(window(&op.x)).push(op.scale).push(window(&op.out)).push(count);
    cuda.launch("add", "add", walk(cuda, count), &mut args)
}
