//! Candidates for sampling: a workgroup a row.

use crate::Wgpu;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::TopK;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("top_k")
}

pub(crate) fn encode(gpu: &Wgpu, op: &TopK<Wgpu>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    let k = op.values.cols();
    let call = Call::new(kernel()).input(&op.x).output(&op.values).output(&op.indices).sizes([
        rows,
        cols,
        k,
        k.next_power_of_two(),
    ]);
    gpu.dispatch(call, rows)
}
