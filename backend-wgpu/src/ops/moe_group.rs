//! Pairs sorted by expert: a workgroup an expert.

use crate::Wgpu;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::MoeGroup;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("moe_group")
}

pub(crate) fn encode(gpu: &Wgpu, op: &MoeGroup<Wgpu>) -> Result<()> {
    let [rows, top_k] = op.ids.shape();
    let call = Call::new(kernel())
        .input(&op.ids)
        .output(&op.groups.order)
        .output(&op.groups.offsets)
        .sizes([rows, top_k, op.experts]);
    gpu.dispatch(call, op.experts)
}
