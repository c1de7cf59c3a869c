//! Products with weights read in place, whatever their format, and rows of weights as f32.

use super::parallel;
use super::simd::fma;
use super::{Cpu, buffer::RowsMut};
use crate::batch::to_usize;
use crate::ops::{Embed, Matmul, Store};
use crate::quant::{E2M1, e4m3_to_f32};
use crate::weight::{Format, NVFP4_GROUP, Weight};
use pulp::{Arch, Simd, WithSimd};
use std::cell::RefCell;

/// Stored bytes of one matrix. Unlike a [`Weight`] it crosses threads.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [u8],
    scales: &'a [u8],
    scale: f32,
    format: Format,
    rows: usize,
    cols: usize,
}

impl<'a> Matrix<'a> {
    pub(super) fn of(weight: &'a Weight<Cpu>, expert: usize) -> Self {
        let scales = match weight.format {
            Format::Nvfp4 => weight.planes[weight.experts + expert].stored(),
            _ => &[],
        };
        Self {
            data: weight.planes[expert].stored(),
            scales,
            scale: weight.scales[expert],
            format: weight.format,
            rows: weight.rows,
            cols: weight.cols,
        }
    }

    /// Columns `start..start + out.len()` of a row, as f32; `start` is a multiple of 16.
    #[inline(always)]
    fn decode(&self, row: usize, start: usize, out: &mut [f32]) {
        let first = row * self.cols + start;
        let elements = |bytes: usize| &self.data[first * bytes..][..out.len() * bytes];
        match self.format {
            Format::F32 => out.copy_from_slice(bytemuck::cast_slice(elements(4))),
            Format::BF16 => {
                let stored: &[u16] = bytemuck::cast_slice(elements(2));
                for (out, bits) in out.iter_mut().zip(stored) {
                    *out = f32::from_bits(u32::from(*bits) << 16);
                }
            }
            Format::F16 => {
                let stored: &[u16] = bytemuck::cast_slice(elements(2));
                for (out, bits) in out.iter_mut().zip(stored) {
                    *out = f16_to_f32(*bits);
                }
            }
            Format::Fp8 => {
                let stored = elements(1);
                for (out, byte) in out.iter_mut().zip(stored) {
                    *out = fp8_to_f32(*byte) * self.scale;
                }
            }
            Format::Nvfp4 => self.decode_nvfp4(row, start, out),
        }
    }

    #[inline(always)]
    fn decode_nvfp4(&self, row: usize, start: usize, out: &mut [f32]) {
        let codes = &self.data[(row * self.cols + start) / 2..][..out.len() / 2];
        let scales = &self.scales[(row * self.cols + start) / NVFP4_GROUP..];
        let (groups, _) = out.as_chunks_mut::<NVFP4_GROUP>();
        let (bytes, _) = codes.as_chunks::<{ NVFP4_GROUP / 2 }>();
        for ((out, bytes), scale) in groups.iter_mut().zip(bytes).zip(scales) {
            let scale = e4m3_to_f32(*scale) * self.scale;
            for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *pair = E2M1_PAIRS[usize::from(*byte)];
            }
            out.iter_mut().for_each(|v| *v *= scale);
        }
    }
}

/// Values of the two codes of a byte, low nibble first.
const E2M1_PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (low, high) = (byte & 15, byte >> 4);
        pairs[byte] = [
            if low < 8 { E2M1[low] } else { -E2M1[low - 8] },
            if high < 8 { E2M1[high] } else { -E2M1[high - 8] },
        ];
        byte += 1;
    }
    pairs
};

/// Exponent and mantissa move to their places in an f32, and a power of two makes up for the bias; unlike a table or
/// a conversion call it vectorises everywhere, and subnormals come out right. Weights are finite.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

/// As [`f16_to_f32`].
#[inline(always)]
fn fp8_to_f32(byte: u8) -> f32 {
    let bits = u32::from(byte);
    let magnitude = f32::from_bits((bits & 0x7f) << 20) * f32::from_bits((254 - 7) << 23);
    f32::from_bits(magnitude.to_bits() | (bits & 0x80) << 24)
}

/// Columns that are decoded at once: a few rows of them stay in the first-level cache, a panel in the second.
const DEPTH: usize = 1024;
/// Weight rows of one task.
const PANEL: usize = 48;
/// Rows and weight rows of one register tile: 12 sums, 3 weights and 1 input fill 16 registers.
const TILE: [usize; 2] = [4, 3];

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

/// `x weight^T`, in panels of [`PANEL`] outputs: panel by panel, `[outputs of the panel, rows]`.
pub(super) fn product(x: &Inputs, weight: Matrix<'_>) -> Vec<f32> {
    let mut out = vec![0.0; weight.rows * x.rows];
    if x.rows == 0 {
        return out;
    }
    let panels = out.chunks_mut(PANEL * x.rows).enumerate().collect();
    let arch = Arch::new();
    parallel::each(x.rows * weight.rows * weight.cols, panels, |(index, out)| {
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(PANEL * DEPTH, 0.0);
            arch.dispatch(Panel { x, weight, first: index * PANEL, buffer, out });
        });
    });
    out
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
    /// `[weight rows, rows]`
    out: &'a mut [f32],
}

impl WithSimd for Panel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let rows = self.x.rows;
        // With few rows a decoded weight is used at once, from the first-level cache.
        let together = if rows <= 2 * TILE[0] { TILE[1] } else { PANEL };
        for start in (0..self.weight.cols).step_by(DEPTH) {
            let depth = DEPTH.min(self.weight.cols - start);
            let padded = depth.next_multiple_of(16);
            for (group, out) in self.out.chunks_mut(together * rows).enumerate() {
                let first = self.first + group * together;
                let decoded = &mut self.buffer[..out.len() / rows * padded];
                for (row, to) in decoded.chunks_mut(padded).enumerate() {
                    self.weight.decode(first + row, start, &mut to[..depth]);
                    to[depth..].fill(0.0);
                }
                multiply(simd, self.x, start, decoded, padded, out);
            }
        }
    }
}

/// `out += weights x^T` over columns `start..start + depth`. Weights are `[outputs, depth]`, out `[outputs, rows]`.
#[inline(always)]
fn multiply<S: Simd>(
    simd: S,
    x: &Inputs,
    start: usize,
    weights: &[f32],
    depth: usize,
    out: &mut [f32],
) {
    for row in (0..x.rows).step_by(TILE[0]) {
        let rows = TILE[0].min(x.rows - row);
        let input = |i: usize| &x.values[(row + i.min(rows - 1)) * x.stride + start..][..depth];
        let blocks = weights.chunks(TILE[1] * depth).zip(out.chunks_mut(TILE[1] * x.rows));
        for (weights, out) in blocks {
            let out = &mut out[row..];
            if weights.len() < TILE[1] * depth {
                for (weight, out) in weights.chunks(depth).zip(out.chunks_mut(x.rows)) {
                    for (i, out) in out.iter_mut().take(rows).enumerate() {
                        let [[sum]] = tile(simd, [input(i)], [weight]);
                        *out += sum;
                    }
                }
                continue;
            }
            let w = [0, 1, 2].map(|i| &weights[i * depth..][..depth]);
            match rows {
                1 => add(out, x.rows, tile(simd, [input(0)], w)),
                2 => add(out, x.rows, tile(simd, [input(0), input(1)], w)),
                3 => add(out, x.rows, tile(simd, [input(0), input(1), input(2)], w)),
                _ => add(out, x.rows, tile(simd, [0, 1, 2, 3].map(input), w)),
            }
        }
    }
}

#[inline(always)]
fn add<const X: usize, const W: usize>(out: &mut [f32], stride: usize, sums: [[f32; W]; X]) {
    for (i, sums) in sums.iter().enumerate() {
        for (j, sum) in sums.iter().enumerate() {
            out[j * stride + i] += sum;
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

/// Hands row `row` of a product to `store`, output by output.
pub(super) fn outputs(product: &[f32], rows: usize, row: usize) -> impl Iterator<Item = f32> {
    product.iter().skip(row).step_by(rows).copied()
}

pub(super) fn matmul(op: &Matmul<'_, Cpu>) {
    let (Some(x), Some(mut out)) = (op.x.f32_rows(), op.out.f32_rows_mut()) else {
        return op.reference();
    };
    let rows = op.x.rows();
    let inputs = Inputs::new(op.x.cols(), (0..rows).map(|r| x.row(r)));
    let values = product(&inputs, Matrix::of(op.weight, 0));
    let bias = op.bias.as_ref().and_then(|b| b.f32_rows());
    let bias = bias.as_ref().map(|b| b.row(0));
    store(&mut out, &values, bias, op.store);
}

/// Writes a product `[outputs, rows]` to rows.
fn store(out: &mut RowsMut<'_>, values: &[f32], bias: Option<&[f32]>, store: Store) {
    let targets: Vec<_> = out.rows().collect();
    let rows = targets.len();
    let work = values.len();
    parallel::each(work, targets.into_iter().enumerate().collect(), |(row, target)| {
        for (o, (target, value)) in target.iter_mut().zip(outputs(values, rows, row)).enumerate() {
            store.apply(target, value + bias.map_or(0.0, |b| b[o]));
        }
    });
}

pub(super) fn embed(op: &Embed<'_, Cpu>) {
    let tokens = op.tokens.dense_u32();
    let Some(mut out) = op.out.f32_rows_mut() else { return op.reference() };
    let table = Matrix::of(op.table, 0);
    for (out, token) in out.rows().zip(tokens) {
        table.decode(to_usize(token), 0, out);
        out.iter_mut().for_each(|v| *v *= op.scale);
    }
}
