//! `x *= factor`.

use super::pointwise;
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Scale;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("scale")
}

pub(crate) fn encode(gpu: &Wgpu, op: &Scale<Wgpu>) -> Result<()> {
    want_f32("scale", &[&op.x])?;
    let [rows, cols] = op.x.shape();
    let call = Call::new(kernel()).output(&op.x).sizes([rows, cols]).floats([op.factor]);
    gpu.dispatch(call, pointwise(rows, cols))
}
