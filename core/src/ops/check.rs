//! The refusals that ops share.

use crate::backend::Backend;
use crate::batch::Segments;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};
use crate::weight::Weight;

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

/// Refusals of operands of a kind: its dtypes, then its shape.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $dtypes:expr;)*) => {
        $($(#[$doc])*
        pub(super) fn $kind<B: Backend>(
            op: &str,
            operand: &str,
            tensor: &Tensor<B>,
            want: [usize; 2],
            meaning: &str,
        ) -> Result<()> {
            dtype(op, operand, tensor, &$dtypes)?;
            shape(op, operand, tensor, want, meaning)
        })*
    };
}

kinds! {
    /// What ops hand on.
    activation: [DType::F32, DType::BF16, DType::F16];
    /// A parameter or a state.
    f32: [DType::F32];
    /// State of the recurrence.
    state: [DType::F32, DType::BF16];
    /// A table.
    u32: [DType::U32];
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
