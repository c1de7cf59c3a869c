//! Gated norm by groups, gate before or after.

use super::rms_norm::threads;
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::{GateOrder, GatedRmsNorm};

fn kernel(threads: u32, order: GateOrder) -> Kernel {
    Kernel::new("gated_rms_norm")
        .with("THREADS", threads)
        .with("NORM_FIRST", u32::from(order == GateOrder::NormThenGate))
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let orders = [GateOrder::GateThenNorm, GateOrder::NormThenGate];
    orders.into_iter().flat_map(|order| [64, 256].map(|threads| kernel(threads, order))).collect()
}

pub(crate) fn encode(gpu: &Wgpu, op: &GatedRmsNorm<Wgpu>) -> Result<()> {
    want_f32("gated_rms_norm", &[&op.y, &op.z, &op.out])?;
    let [rows, cols] = op.y.shape();
    let width = cols / op.groups;
    let call = Call::new(kernel(threads(width), op.order))
        .input(&op.y)
        .input(&op.z)
        .input(&op.weight)
        .output(&op.out)
        .sizes([rows, op.groups, width])
        .floats([op.eps]);
    gpu.dispatch(call, rows * op.groups)
}
