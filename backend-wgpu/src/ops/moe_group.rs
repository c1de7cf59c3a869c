//! Pairs sorted by expert: a workgroup an expert, or an invocation without barriers.

use crate::Wgpu;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::MoeGroup;

/// Experts of a workgroup of the form without barriers.
const BLOCK: usize = 16;

pub(crate) fn kernels() -> Vec<Kernel> {
    ["moe_group", "moe_group_thread"].map(Kernel::new).into()
}

pub(crate) fn encode(gpu: &Wgpu, op: &MoeGroup<Wgpu>) -> Result<()> {
    let [rows, top_k] = op.ids.shape();
    let (shader, workgroups) = match gpu.variants.barrier_free() {
        true => ("moe_group_thread", op.experts.div_ceil(BLOCK)),
        false => ("moe_group", op.experts),
    };
    let call = Call::new(Kernel::new(shader))
        .input(&op.ids)
        .output(&op.groups.order)
        .output(&op.groups.offsets)
        .sizes([rows, top_k, op.experts]);
    gpu.dispatch(call, workgroups)
}
