//! The refusals that ops share.

use crate::backend::Backend;
use crate::batch::Segments;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};
use crate::weight::Weight;

/// What activations may be stored as.
const ACTIVATIONS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

pub(super) fn shape<B: Backend>(
    op: &str,
    operand: &str,
    tensor: &Tensor<B>,
    want: [usize; 2],
    meaning: &str,
) -> Result<()> {
    if tensor.shape() == want {
        return Ok(());
    }
    Err(Error::op(op, format!("{operand} is {:?}, want {want:?} ({meaning})", tensor.shape())))
}

pub(super) fn dtype<B: Backend>(
    op: &str,
    operand: &str,
    tensor: &Tensor<B>,
    allowed: &[DType],
) -> Result<()> {
    if allowed.contains(&tensor.dtype()) {
        return Ok(());
    }
    let names: Vec<_> = allowed.iter().map(|d| d.name()).collect();
    Err(Error::op(op, format!("{operand} is {}, want {}", tensor.dtype(), names.join(" or "))))
}

/// An activation of the given shape.
pub(super) fn activation<B: Backend>(
    op: &str,
    operand: &str,
    tensor: &Tensor<B>,
    want: [usize; 2],
    meaning: &str,
) -> Result<()> {
    dtype(op, operand, tensor, &ACTIVATIONS)?;
    shape(op, operand, tensor, want, meaning)
}

/// An f32 parameter or state of the given shape.
pub(super) fn f32<B: Backend>(
    op: &str,
    operand: &str,
    tensor: &Tensor<B>,
    want: [usize; 2],
    meaning: &str,
) -> Result<()> {
    dtype(op, operand, tensor, &[DType::F32])?;
    shape(op, operand, tensor, want, meaning)
}

/// State of the given shape, f32 or bf16.
pub(super) fn state<B: Backend>(
    op: &str,
    operand: &str,
    tensor: &Tensor<B>,
    want: [usize; 2],
    meaning: &str,
) -> Result<()> {
    dtype(op, operand, tensor, &[DType::F32, DType::BF16])?;
    shape(op, operand, tensor, want, meaning)
}

/// A u32 table of the given shape.
pub(super) fn u32<B: Backend>(
    op: &str,
    operand: &str,
    tensor: &Tensor<B>,
    want: [usize; 2],
    meaning: &str,
) -> Result<()> {
    dtype(op, operand, tensor, &[DType::U32])?;
    shape(op, operand, tensor, want, meaning)
}

pub(super) fn weight<B: Backend>(
    op: &str,
    operand: &str,
    weight: &Weight<B>,
    want: [usize; 3],
    meaning: &str,
) -> Result<()> {
    let found = [weight.experts, weight.rows, weight.cols];
    if found == want {
        return Ok(());
    }
    Err(Error::op(op, format!("{operand} {} is {found:?}, want {want:?} ({meaning})", weight.name)))
}

/// The tables of a batch of `rows` rows.
pub(super) fn segments<B: Backend>(op: &str, segments: &Segments<B>, rows: usize) -> Result<()> {
    u32(
        op,
        "segments.places",
        &segments.places,
        [rows, 4],
        "rows of x, slot position segment index",
    )?;
    u32(
        op,
        "segments.table",
        &segments.table,
        [segments.shape.segments, 4],
        "segments, row len slot position",
    )
}

/// Refuses with `message` unless `holds`.
pub(super) fn ensure(op: &str, holds: bool, message: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::op(op, message())) }
}
