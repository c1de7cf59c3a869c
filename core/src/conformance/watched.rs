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
    /// Relative L2 that the window is held to instead, where it is not 0.
    pub rounding: f32,
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
        if self.rounding > 0.0 {
            let of_window = |all: &[f32]| -> Vec<f32> {
                all.iter().enumerate().filter(|(i, _)| inside(*i)).map(|(_, v)| *v).collect()
            };
            if let Some(fault) = self.rounded(&of_window(&got), &of_window(&want)) {
                return Some(fault);
            }
        }
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
            (self.rounding == 0.0 && !self.close(got[i], want[i], dtype))
                .then(|| format!("{} is {}, want {}", place(i), got[i], want[i]))
        })
    }

    /// What is wrong with a window whose operands were rounded: its whole, or a row by twice as much, as rows have fewer
    /// roundings to even out.
    fn rounded(&self, got: &[f32], want: &[f32]) -> Option<String> {
        let distance = |got: &[f32], want: &[f32]| {
            let squares = |values: &mut dyn Iterator<Item = f32>| -> f64 {
                values.map(|v| f64::from(v).powi(2)).sum()
            };
            let apart = squares(&mut got.iter().zip(want).map(|(a, b)| a - b));
            (apart / squares(&mut want.iter().copied())).sqrt()
        };
        // NaN is no distance.
        let over = |distance: f64, most: f32| distance.is_nan() || distance > f64::from(most);
        let (name, cols, most) = (&self.name, self.window.cols(), self.rounding);
        let whole = distance(got, want);
        if over(whole, most) {
            return Some(format!("{name} lies {whole:.2e} off in L2, want at most {most:.2e}"));
        }
        let rows = got.chunks(cols).zip(want.chunks(cols)).map(|(a, b)| distance(a, b));
        rows.enumerate().find(|(_, row)| over(*row, 2.0 * most)).map(|(index, row)| {
            format!("{name}[{index}] lies {row:.2e} off in L2, want at most {:.2e}", 2.0 * most)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Memory;
    use crate::cpu::Cpu;

    #[test]
    fn one_row_of_a_wrong_scale_is_more_than_rounding() {
        let cpu = Cpu::reference();
        let whole = cpu.tensor(3, 4, DType::F32, Memory::Scratch, "out").expect("it fits");
        let (before, tolerance, rounding) = (0, Tolerance::EXACT, 0.03);
        let window = whole.row_range(0, 3);
        let out = Watched { name: "out".into(), whole, before, window, tolerance, rounding };
        let want = [1f32, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 80.0, 0.1, 0.2, 0.3, 0.4];
        let fault = |got: [f32; 12]| {
            out.fault(bytemuck::cast_slice(&got), bytemuck::cast_slice(&want)).unwrap_or_default()
        };
        assert_eq!(fault(want.map(|v| v * 1.02)), "");
        assert_eq!(
            fault(want.map(|v| v * 1.04)),
            "out lies 4.00e-2 off in L2, want at most 3.00e-2"
        );
        let scaled = |by: f32| std::array::from_fn(|i| want[i] * if i < 8 { 1.0 } else { by });
        assert_eq!(fault(scaled(1.05)), "");
        assert_eq!(fault(scaled(1.1)), "out[2] lies 1.00e-1 off in L2, want at most 6.00e-2");
        assert_eq!(fault(scaled(f32::NAN)), "out lies NaN off in L2, want at most 3.00e-2");
    }
}
