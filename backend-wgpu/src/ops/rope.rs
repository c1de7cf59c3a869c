//! Rotary embedding, in place.

use super::pointwise;
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Rope;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("rope")
}

pub(crate) fn encode(gpu: &Wgpu, op: &Rope<Wgpu>) -> Result<()> {
    want_f32("rope", &[&op.x])?;
    let [rows, cols] = op.x.shape();
    let (heads, pairs) = (cols / op.head_dim, op.inv_freq.cols());
    let call = Call::new(kernel())
        .output(&op.x)
        .input(&op.inv_freq)
        .input(&op.segments.places)
        .sizes([rows, heads, op.head_dim, pairs]);
    gpu.dispatch(call, pointwise(rows, heads * pairs))
}
