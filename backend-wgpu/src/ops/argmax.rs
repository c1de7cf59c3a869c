//! The greedy token: a workgroup a row.

use crate::Wgpu;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Argmax;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("argmax")
}

pub(crate) fn encode(gpu: &Wgpu, op: &Argmax<Wgpu>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    gpu.dispatch(Call::new(kernel()).input(&op.x).output(&op.out).sizes([rows, cols]), rows)
}
