//! Comparing an output with the reference's, ring included.

use crate::backend::Backend;
use crate::cpu::widen;
use crate::tensor::{DType, Tensor};

/// How far an output may lie from the reference: `|a - b| <= absolute + relative * |b|`.
///
/// Narrow outputs are also allowed one rounding step of their dtype.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Absolute part.
    pub absolute: f32,
    /// Part that grows with the reference's value.
    pub relative: f32,
}

impl Tolerance {
    /// Bit for bit: copies, ids, tables.
    pub const EXACT: Self = Self { absolute: 0.0, relative: 0.0 };
    /// f32 arithmetic in another order: a few hundred units in the last place.
    pub const F32: Self = Self { absolute: 2e-5, relative: 2e-5 };

    /// The same for terms that are `by` times as large as 1: rounding errors grow with the terms of a sum.
    #[must_use]
    pub const fn scaled(self, by: f32) -> Self {
        Self { absolute: self.absolute * by, relative: self.relative }
    }
}

/// An output or state to compare once the case has run.
pub(super) struct Watched<B: Backend> {
    pub name: String,
    /// The whole allocation, ring included. `[rows + 2, stride]`
    pub whole: Tensor<B>,
    /// Columns before the window.
    pub before: usize,
    /// The window. `[rows, cols]`
    pub window: Tensor<B>,
    pub tolerance: Tolerance,
}

impl<B: Backend> Watched<B> {
    /// The first thing wrong with the output against the reference's, if any. Takes the bytes of both wholes.
    pub(super) fn fault(&self, bytes: &[u8], reference: &[u8]) -> Option<String> {
        let (dtype, stride) = (self.whole.dtype(), self.whole.cols());
        let first_row = self.window.offset() / stride;
        let inside = |i: usize| {
            let (row, col) = (i / stride, i % stride);
            let in_rows = row >= first_row && row < first_row + self.window.rows();
            in_rows && col >= self.before && col < self.before + self.window.cols()
        };
        let place = |i: usize| {
            format!(
                "{}[{}, {}]",
                self.name,
                (i / stride) as i64 - first_row as i64,
                i % stride - self.before.min(i % stride)
            )
        };
        if dtype == DType::U32 {
            let (got, want) = (words(bytes), words(reference));
            return (0..got.len()).find(|&i| got[i] != want[i]).map(|i| {
                let what = if inside(i) { "is" } else { "lies outside the output and is" };
                format!("{} {what} {}, want {}", place(i), got[i], want[i])
            });
        }
        let (got, want) = (widen(bytes, dtype), widen(reference, dtype));
        (0..got.len()).find_map(|i| {
            if !inside(i) {
                return (got[i] != want[i]).then(|| {
                    format!(
                        "{} lies outside the output and was overwritten with {}",
                        place(i),
                        got[i]
                    )
                });
            }
            (!self.close(got[i], want[i], dtype))
                .then(|| format!("{} is {}, want {}", place(i), got[i], want[i]))
        })
    }

    fn close(&self, got: f32, want: f32, dtype: DType) -> bool {
        if want.is_nan() || got.is_nan() {
            // What the reference leaves unwritten stays as it was.
            return want.is_nan() && got.is_nan();
        }
        if got == want {
            return true;
        }
        let step = match dtype {
            DType::BF16 => 2f32.powi(-7),
            DType::F16 => 2f32.powi(-10),
            DType::F8E4M3 => 2f32.powi(-3),
            DType::F32 | DType::U32 => 0.0,
        };
        (got - want).abs()
            <= self.tolerance.absolute + (self.tolerance.relative + step) * want.abs()
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}
