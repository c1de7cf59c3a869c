//! The weighted sum of each row's experts.

use super::{pointwise, store_parts};
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::MoeCombine;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("moe_combine")
}

pub(crate) fn encode(gpu: &Wgpu, op: &MoeCombine<Wgpu>) -> Result<()> {
    want_f32("moe_combine", &[&op.x, &op.out])?;
    let [rows, cols] = op.out.shape();
    let (accumulate, scale) = store_parts(op.store);
    let call = Call::new(kernel())
        .input(&op.x)
        .input(&op.weights)
        .output(&op.out)
        .sizes([rows, cols, op.weights.cols(), accumulate])
        .floats([scale]);
    gpu.dispatch(call, pointwise(rows, cols))
}
