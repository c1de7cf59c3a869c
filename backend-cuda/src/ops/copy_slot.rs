//! Copies one slot's state over another's.

use super::walk;
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{in_pieces, pointer};
use whipsnake_core::error::Result;
use whipsnake_core::ops::CopySlot;
use whipsnake_core::tensor::Tensor;

pub(crate) fn copy_slot(cuda: &Cuda, op: &CopySlot<Cuda>) -> Result<()> {
    let bytes = op.state.dtype().bytes();
    let slot = |index: usize| op.state.row_range(index * op.rows_per_slot, op.rows);
    let (from, to) = (slot(op.from), slot(op.to));
    let (rows, width, pitch) =
        (op.rows as u64, (op.state.cols() * bytes) as u64, (op.state.stride() * bytes) as u64);
    // A dense slot is one row, whatever the width of its rows.
    let (rows, width, pitch) =
        if width == pitch { (1, rows * width, rows * width) } else { (rows, width, pitch) };
    let fits = |tensor: &Tensor<Cuda>| {
        pointer(tensor).is_multiple_of(16) && (rows == 1 || in_pieces(tensor))
    };
    let pieces = width.is_multiple_of(16) && fits(&from) && fits(&to);
    let (name, count) = if pieces {
        ("copy_slot_pieces", rows * width / 16)
    } else {
        ("copy_slot_bytes", rows * width)
    };
    let mut args = Args::new();
    args.push(pointer(&from)).push(pointer(&to)).push(rows).push(width).push(pitch);
    cuda.launch("copy_slot", name, walk(cuda, count), &mut args)
}
