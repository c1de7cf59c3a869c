//! Gated norm by groups, gate before or after.

use super::rms_norm::{BLOCK, threads};
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

fn thread_kernel(order: GateOrder) -> Kernel {
    let norm_first = u32::from(order == GateOrder::NormThenGate);
    Kernel::new("gated_rms_norm_thread").with("NORM_FIRST", norm_first)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let orders = [GateOrder::GateThenNorm, GateOrder::NormThenGate];
    let kernels = |order| [kernel(64, order), kernel(256, order), thread_kernel(order)];
    orders.into_iter().flat_map(kernels).collect()
}

pub(crate) fn encode(gpu: &Wgpu, op: &GatedRmsNorm<Wgpu>) -> Result<()> {
    want_f32("gated_rms_norm", &[&op.y, &op.z, &op.out])?;
    let [rows, cols] = op.y.shape();
    let width = cols / op.groups;
    let groups = rows * op.groups;
    let (kernel, workgroups) = match gpu.variants.barrier_free() {
        true => (thread_kernel(op.order), groups.div_ceil(BLOCK)),
        false => (kernel(threads(width), op.order), groups),
    };
    let call = Call::new(kernel)
        .input(&op.y)
        .input(&op.z)
        .input(&op.weight)
        .output(&op.out)
        .sizes([rows, op.groups, width])
        .floats([op.eps]);
    gpu.dispatch(call, workgroups)
}
