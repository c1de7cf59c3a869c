//! `out[i] = x[indices[i]]`.

use super::pointwise;
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::SelectRows;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("select_rows")
}

pub(crate) fn encode(gpu: &Wgpu, op: &SelectRows<Wgpu>) -> Result<()> {
    want_f32("select_rows", &[&op.x, &op.out])?;
    let [rows, cols] = op.out.shape();
    let call = Call::new(kernel()).input(&op.x).input(&op.indices).output(&op.out);
    gpu.dispatch(call.sizes([rows, cols]), pointwise(rows, cols))
}
