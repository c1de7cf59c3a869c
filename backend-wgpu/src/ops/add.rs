//! `out += scale * x`.

use super::pointwise;
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Add;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("add")
}

pub(crate) fn encode(gpu: &Wgpu, op: &Add<Wgpu>) -> Result<()> {
    want_f32("add", &[&op.x, &op.out])?;
    let [rows, cols] = op.x.shape();
    let call = Call::new(kernel()).input(&op.x).output(&op.out);
    gpu.dispatch(call.sizes([rows, cols]).floats([op.scale]), pointwise(rows, cols))
}
