//! `out = weight * x / rms(x)` by groups.

use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::RmsNorm;

/// Invocations for a group of `width` columns.
pub(super) const fn threads(width: usize) -> u32 {
    if width <= 256 { 64 } else { 256 }
}

/// (Row, group) pairs of a workgroup of the form without barriers.
pub(super) const BLOCK: usize = 8;

fn kernel(threads: u32) -> Kernel {
    Kernel::new("rms_norm").with("THREADS", threads)
}

fn thread_kernel() -> Kernel {
    Kernel::new("rms_norm_thread")
}

pub(crate) fn kernels() -> Vec<Kernel> {
    vec![kernel(64), kernel(256), thread_kernel()]
}

pub(crate) fn encode(gpu: &Wgpu, op: &RmsNorm<Wgpu>) -> Result<()> {
    want_f32("rms_norm", &[&op.x, &op.out])?;
    let [rows, cols] = op.x.shape();
    let width = cols / op.groups;
    let groups = rows * op.groups;
    let (kernel, workgroups) = match gpu.variants.barrier_free() {
        true => (thread_kernel(), groups.div_ceil(BLOCK)),
        false => (kernel(threads(width)), groups),
    };
    let call = Call::new(kernel)
        .input(&op.x)
        .input(&op.weight)
        .output(&op.out)
        .sizes([rows, op.groups, width])
        .floats([op.eps]);
    gpu.dispatch(call, workgroups)
}
