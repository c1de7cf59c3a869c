//! `out = f(x)` or `f(gate) * x`.

use super::{activation_number, pointwise};
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Activate;

fn kernel(gated: bool) -> Kernel {
    Kernel::new("activate").with("GATED", u32::from(gated))
}

pub(crate) fn kernels() -> Vec<Kernel> {
    [false, true].map(kernel).into()
}

pub(crate) fn encode(gpu: &Wgpu, op: &Activate<Wgpu>) -> Result<()> {
    let gate = op.gate.as_ref();
    want_f32("activate", &[&op.x, gate.unwrap_or(&op.x), &op.out])?;
    let [rows, cols] = op.x.shape();
    let call = Call::new(kernel(gate.is_some()))
        .input(&op.x)
        .input_or(gate, &op.x)
        .output(&op.out)
        .sizes([rows, cols, activation_number(op.function)]);
    gpu.dispatch(call, pointwise(rows, cols))
}
