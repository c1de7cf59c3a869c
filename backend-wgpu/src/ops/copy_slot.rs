//! `state[to] = state[from]`, word by word.

use super::pointwise;
use crate::Wgpu;
use crate::call::{Call, residue};
use crate::kernel::Kernel;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::CopySlot;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("copy_slot")
}

pub(crate) fn encode(gpu: &Wgpu, op: &CopySlot<Wgpu>) -> Result<()> {
    let state = &op.state;
    let size = state.dtype().bytes();
    let [row, width, start] = [state.stride(), state.cols(), residue(state)].map(|n| n * size);
    if [row, width, start].iter().any(|bytes| bytes % 4 != 0) {
        return Err(Error::op(
            "copy_slot",
            format!("rows of {width} bytes, {row} apart, are not whole words of 4"),
        ));
    }
    let slot = |slot: usize| (start + slot * op.rows_per_slot * row) / 4;
    let mut call = Call::new(kernel()).output(state);
    // Words replace the elements of the window.
    call.params.clear();
    let call = call.sizes([op.rows, width / 4, row / 4, slot(op.from), slot(op.to)]);
    gpu.dispatch(call, pointwise(op.rows, width / 4))
}
