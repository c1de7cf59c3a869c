//! Products with weights read in place, whatever their format, and rows of weights as f32.

use super::Cpu;
use super::matrix::Matrix;
use super::parallel;
use super::simd::fma;
use crate::batch::to_usize;
use crate::ops::{Embed, Matmul};
use crate::weight::Format;
use pulp::{Arch, Simd, WithSimd};
use std::cell::RefCell;

/// Columns that are decoded at once: a few rows of them stay in the first-level cache, a panel in the second.
const DEPTH: usize = 1024;
/// Weight rows of one task.
const PANEL: usize = 48;
/// Rows and weight rows of one register tile: 12 sums, 3 weights and 1 input fill 16 registers.
const TILE: [usize; 2] = [4, 3];
/// Vectors of weights in flight where one row meets bf16.
const UNROLL: usize = 4;

/// Dense f32 rows, padded with zeros to whole vectors.
pub(super) struct Inputs {
    values: Vec<f32>,
    rows: usize,
    stride: usize,
}

impl Inputs {
    /// Copies rows; the copy is small beside the product.
    pub(super) fn new<'a>(cols: usize, rows: impl ExactSizeIterator<Item = &'a [f32]>) -> Self {
        let (stride, count) = (cols.next_multiple_of(16), rows.len());
        let mut values = vec![0.0; count * stride];
        for (to, from) in values.chunks_mut(stride.max(1)).zip(rows) {
            to[..cols].copy_from_slice(from);
        }
        Self { values, rows: count, stride }
    }
}

/// A product of all rows, in panels of [`PANEL`] outputs.
pub(super) struct Product {
    /// Panel by panel, `[rows, outputs of the panel]`.
    values: Vec<f32>,
    rows: usize,
}

impl Product {
    /// `x weight^T`.
    pub(super) fn new(x: &Inputs, weight: Matrix<'_>) -> Self {
        let mut values = vec![0.0; weight.rows * x.rows];
        let panels = values.chunks_mut(PANEL * x.rows.max(1)).enumerate().collect();
        let (arch, halves) = (Arch::new(), Halves::of(x, weight));
        let work = x.rows * weight.rows * weight.cols;
        parallel::each(work, panels, |(index, out): (usize, &mut [f32])| {
            let first = index * PANEL;
            if let Some(x) = &halves {
                return arch.dispatch(Halved { x, weight, first, out });
            }
            BUFFER.with_borrow_mut(|buffer| {
                buffer.resize(PANEL * DEPTH, 0.0);
                arch.dispatch(Panel { x, weight, first, buffer, out });
            });
        });
        Self { values, rows: x.rows }
    }

    /// The outputs of one row, in runs that follow each other.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = &[f32]> {
        self.values.chunks(PANEL * self.rows).map(move |panel| {
            let width = panel.len() / self.rows;
            &panel[row * width..][..width]
        })
    }
}

/// One row of inputs, even and odd columns apart, to meet pairs of bf16 in registers.
struct Halves([Vec<f32>; 2]);

impl Halves {
    /// For one row and a bf16 matrix whose rows are whole words.
    fn of(x: &Inputs, weight: Matrix<'_>) -> Option<Self> {
        let words = bytemuck::try_cast_slice::<u8, u32>(weight.data).is_ok();
        let fits = weight.format == Format::BF16 && weight.cols.is_multiple_of(2) && words;
        (fits && x.rows == 1).then(|| {
            let (pairs, _) = x.values[..weight.cols].as_chunks::<2>();
            Self([0, 1].map(|i| pairs.iter().map(|pair| pair[i]).collect()))
        })
    }
}

/// One task of a product of one row with a bf16 matrix: bandwidth decides, so nothing passes through a buffer.
struct Halved<'a> {
    x: &'a Halves,
    weight: Matrix<'a>,
    /// First weight row.
    first: usize,
    /// `[weight rows]`
    out: &'a mut [f32],
}

impl WithSimd for Halved<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Halves([even, odd]) = self.x;
        let width = self.weight.cols / 2;
        let words: &[u32] = bytemuck::cast_slice(self.weight.data);
        let words = &words[self.first * width..][..self.out.len() * width];
        for (out, row) in self.out.iter_mut().zip(words.chunks_exact(width)) {
            *out = dot_pairs(simd, even, odd, row);
        }
    }
}

/// Inner product of a split row with a row of bf16 pairs: the odd column is the high half of a word as it stands.
///
/// One row at a time, so that the weights are one stream from end to end, which prefetchers follow.
#[inline(always)]
fn dot_pairs<S: Simd>(simd: S, even: &[f32], odd: &[f32], row: &[u32]) -> f32 {
    const HIGH: u32 = 0xffff_0000;
    let ((even, even_tail), (odd, odd_tail)) = (S::as_simd_f32s(even), S::as_simd_f32s(odd));
    let (words, words_tail) = S::as_simd_u32s(row);
    let (shift, mask) = (simd.splat_u32s(16), simd.splat_u32s(HIGH));
    // The sums stay in registers only where every index is a constant.
    let mut sums = [simd.splat_f32s(0.0); 2 * UNROLL];
    let step = |[low_sum, high_sum]: [S::f32s; 2], words, even, odd| {
        let low = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(words, shift));
        let high = simd.transmute_f32s_u32s(simd.and_u32s(words, mask));
        [fma(simd, low, even, low_sum), fma(simd, high, odd, high_sum)]
    };
    let (words, words_rest) = words.as_chunks::<UNROLL>();
    let (even, even_rest) = even.as_chunks::<UNROLL>();
    let (odd, odd_rest) = odd.as_chunks::<UNROLL>();
    for ((words, even), odd) in words.iter().zip(even).zip(odd) {
        for i in 0..UNROLL {
            [sums[2 * i], sums[2 * i + 1]] =
                step([sums[2 * i], sums[2 * i + 1]], words[i], even[i], odd[i]);
        }
    }
    for ((words, even), odd) in words_rest.iter().zip(even_rest).zip(odd_rest) {
        [sums[0], sums[1]] = step([sums[0], sums[1]], *words, *even, *odd);
    }
    let pair = |((word, even), odd): ((&u32, &f32), &f32)| {
        f32::from_bits(word << 16) * even + f32::from_bits(word & HIGH) * odd
    };
    let tail = words_tail.iter().zip(even_tail).zip(odd_tail).map(pair).sum::<f32>();
    let sum = sums.into_iter().reduce(|a, b| simd.add_f32s(a, b));
    sum.map_or(0.0, |sum| simd.reduce_sum_f32s(sum)) + tail
}

thread_local! {
    /// Decoded weights; one panel a thread, for as long as it lives.
    static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// One task of a product.
struct Panel<'a> {
    x: &'a Inputs,
    weight: Matrix<'a>,
    /// First weight row.
    first: usize,
    /// `[PANEL, DEPTH]`
    buffer: &'a mut [f32],
    /// `[rows, weight rows]`
    out: &'a mut [f32],
}

impl WithSimd for Panel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, weight, first, buffer, out } = self;
        let width = out.len() / x.rows;
        // With few rows a decoded weight is used at once, from the first-level cache.
        let together = if x.rows <= 2 * TILE[0] { TILE[1] } else { PANEL };
        for start in (0..weight.cols).step_by(DEPTH) {
            let depth = DEPTH.min(weight.cols - start);
            let padded = depth.next_multiple_of(16);
            for group in (0..width).step_by(together) {
                let count = together.min(width - group);
                let decoded = &mut buffer[..count * padded];
                for (row, to) in decoded.chunks_mut(padded).enumerate() {
                    weight.decode(simd, first + group + row, start, &mut to[..depth]);
                    to[depth..].fill(0.0);
                }
                multiply(simd, x, start, decoded, padded, (&mut *out, width, group));
            }
        }
        if weight.scale != 1.0 {
            out.iter_mut().for_each(|v| *v *= weight.scale);
        }
    }
}

/// `out += x weights^T` over columns `start..start + depth`. Weights are `[outputs, depth]`; `out` are the values, the
/// width of their rows and the column of the first output.
#[inline(always)]
fn multiply<S: Simd>(
    simd: S,
    x: &Inputs,
    start: usize,
    weights: &[f32],
    depth: usize,
    (out, width, column): (&mut [f32], usize, usize),
) {
    for row in (0..x.rows).step_by(TILE[0]) {
        let rows = TILE[0].min(x.rows - row);
        let input = |i: usize| &x.values[(row + i) * x.stride + start..][..depth];
        for (block, weights) in weights.chunks(TILE[1] * depth).enumerate() {
            let out = &mut out[row * width + column + block * TILE[1]..];
            if weights.len() < TILE[1] * depth {
                for (j, weight) in weights.chunks(depth).enumerate() {
                    for i in 0..rows {
                        let [[sum]] = tile(simd, [input(i)], [weight]);
                        out[i * width + j] += sum;
                    }
                }
                continue;
            }
            let w = [0, 1, 2].map(|i| &weights[i * depth..][..depth]);
            match rows {
                1 => add(out, width, tile(simd, [input(0)], w)),
                2 => add(out, width, tile(simd, [input(0), input(1)], w)),
                3 => add(out, width, tile(simd, [input(0), input(1), input(2)], w)),
                _ => add(out, width, tile(simd, [0, 1, 2, 3].map(input), w)),
            }
        }
    }
}

#[inline(always)]
fn add<const X: usize, const W: usize>(out: &mut [f32], width: usize, sums: [[f32; W]; X]) {
    for (i, sums) in sums.iter().enumerate() {
        for (j, sum) in sums.iter().enumerate() {
            out[i * width + j] += sum;
        }
    }
}

/// Inner products of every input with every weight, all of one length, a whole number of vectors.
#[inline(always)]
fn tile<S: Simd, const X: usize, const W: usize>(
    simd: S,
    x: [&[f32]; X],
    w: [&[f32]; W],
) -> [[f32; W]; X] {
    let x = x.map(|x| S::as_simd_f32s(x).0);
    let w = w.map(|w| S::as_simd_f32s(w).0);
    let steps = w[0].len();
    let (x, w) = (x.map(|x| &x[..steps]), w.map(|w| &w[..steps]));
    let mut sums = [[simd.splat_f32s(0.0); W]; X];
    for step in 0..steps {
        let weights = w.map(|w| w[step]);
        for i in 0..X {
            let input = x[i][step];
            for j in 0..W {
                sums[i][j] = fma(simd, input, weights[j], sums[i][j]);
            }
        }
    }
    sums.map(|sums| sums.map(|sum| simd.reduce_sum_f32s(sum)))
}

pub(super) fn matmul(op: &Matmul<'_, Cpu>) {
    let (Some(x), Some(mut out)) = (op.x.f32_rows(), op.out.f32_rows_mut()) else {
        return op.reference();
    };
    let inputs = Inputs::new(op.x.cols(), (0..op.x.rows()).map(|r| x.row(r)));
    let product = Product::new(&inputs, Matrix::of(op.weight, 0));
    let bias = op.bias.as_ref().and_then(|b| b.f32_rows());
    let (bias, store) = (bias.as_ref().map(|b| b.row(0)), op.store);
    let work = op.x.rows() * op.out.cols();
    parallel::each(work, out.rows().enumerate().collect(), |(row, out): (usize, &mut [f32])| {
        for (run, (out, values)) in out.chunks_mut(PANEL).zip(product.row(row)).enumerate() {
            let bias = bias.map(|b| &b[run * PANEL..]);
            for (o, (out, value)) in out.iter_mut().zip(values).enumerate() {
                store.apply(out, value + bias.map_or(0.0, |b| b[o]));
            }
        }
    });
}

pub(super) fn embed(op: &Embed<'_, Cpu>) {
    let tokens = op.tokens.dense_u32();
    let Some(mut out) = op.out.f32_rows_mut() else { return op.reference() };
    let table = Matrix::of(op.table, 0);
    let arch = Arch::new();
    for (out, token) in out.rows().zip(tokens) {
        arch.dispatch(Lookup { table, row: to_usize(token).min(op.table.rows - 1), out });
        out.iter_mut().for_each(|v| *v *= op.scale * table.scale);
    }
}

/// One row of a table as f32.
struct Lookup<'a> {
    table: Matrix<'a>,
    row: usize,
    out: &'a mut [f32],
}

impl WithSimd for Lookup<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.table.decode(simd, self.row, 0, self.out);
    }
}
