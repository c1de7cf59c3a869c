//! Convolution and scan: a task a head and segment, vectors along channels or state.

use super::parallel;
use super::pointwise::apply;
use super::simd::{exp, fma};
use super::{Cpu, buffer::SegmentView};
use crate::ops::{CausalConv1d, SsmScan, softplus};
use pulp::{Arch, Simd, WithSimd};

/// Segments shorter than this pass channel by channel: turning taps and window round would cost more than it saves.
const WORTH_TURNING: usize = 4;

pub(super) fn causal_conv1d(op: &CausalConv1d<Cpu>) {
    let (Some(x), Some(mut out)) = (op.x.f32_rows(), op.out.f32_rows_mut()) else {
        return op.reference();
    };
    let (Some(mut state), Some(weight)) = (op.state.f32_rows_mut(), op.weight.f32_rows()) else {
        return;
    };
    let (channels, width) = (op.x.cols(), op.weight.cols());
    let taps = weight.all(channels);
    let bias = op.bias.as_ref().map_or_else(|| vec![0.0; channels], |b| b.dense());
    for segment in op.segments.list() {
        let window = slot(state.all(), segment, channels * (width - 1));
        if segment.fresh() {
            window.fill(0.0);
        }
        if segment.len < WORTH_TURNING {
            for row in segment.rows() {
                let out = out.row(row);
                out.copy_from_slice(&bias);
                by_channel(out, x.row(row), taps, window);
                apply(op.activation, out);
            }
            continue;
        }
        let taps = turned(taps, width);
        let history = turned(window, width - 1);
        // Input `i` rows after the first one that the window holds.
        let input = |i: usize| match i.checked_sub(width - 1) {
            Some(row) => x.row(segment.first_row + row),
            None => &history[i * channels..][..channels],
        };
        for row in 0..segment.len {
            let out = out.row(segment.first_row + row);
            out.copy_from_slice(&bias);
            for (j, taps) in taps.chunks(channels).enumerate() {
                out.iter_mut().zip(taps).zip(input(row + j)).for_each(|((o, t), x)| *o += t * x);
            }
            apply(op.activation, out);
        }
        for j in 0..width - 1 {
            for (window, x) in window.chunks_mut(width - 1).zip(input(segment.len + j)) {
                window[j] = *x;
            }
        }
    }
}

/// One row: adds to `out`, and moves the row into the window. Taps are `[channels, width]`, the window one less wide.
fn by_channel(out: &mut [f32], x: &[f32], taps: &[f32], window: &mut [f32]) {
    let width = taps.len() / x.len();
    let channels = taps.chunks_exact(width).zip(window.chunks_exact_mut(width - 1));
    for ((out, x), (taps, window)) in out.iter_mut().zip(x).zip(channels) {
        *out += taps[width - 1] * x;
        for j in 0..width - 1 {
            *out += taps[j] * window[j];
            window[j] = if j + 2 < width { window[j + 1] } else { *x };
        }
    }
}

/// Rows of `cols` as columns.
fn turned(values: &[f32], cols: usize) -> Vec<f32> {
    let rows = values.len() / cols;
    let mut out = vec![0.0; values.len()];
    for (r, row) in values.chunks_exact(cols).enumerate() {
        row.iter().enumerate().for_each(|(c, value)| out[c * rows + r] = *value);
    }
    out
}

/// The state of a segment's slot.
fn slot(state: &mut [f32], segment: SegmentView, size: usize) -> &mut [f32] {
    &mut state[segment.slot * size..][..size]
}

pub(super) fn ssm_scan(op: &SsmScan<Cpu>) {
    let inputs = [&op.x, &op.b, &op.c, &op.dt].map(|t| t.f32_rows());
    let updated = (op.out.f32_rows_mut(), op.state.f32_rows_mut());
    let ((Some(mut out), Some(mut state)), [Some(x), Some(b), Some(c), Some(dt)]) =
        (updated, inputs)
    else {
        return op.reference();
    };
    let (heads, head_dim, n) = (op.heads(), op.head_dim, op.state_size);
    let params = op.head_params.dense();
    let (groups, [least, most]) = (op.groups(), op.dt_limit);
    let segments = op.segments.list();
    let rows: usize = segments.iter().map(|s| s.len).sum();
    // `[heads, rows of the segment, head_dim]` of each segment: what one task writes is in one piece.
    let mut y = vec![0.0; rows * heads * head_dim];
    let mut slots: Vec<_> = state.all().chunks_mut(heads * head_dim * n).map(Some).collect();
    let mut tasks = Vec::with_capacity(segments.len() * heads);
    let mut rest = y.as_mut_slice();
    for &segment in &segments {
        let (mine, others) = rest.split_at_mut(segment.len * heads * head_dim);
        rest = others;
        let states = slots[segment.slot].take().unwrap_or_default().chunks_mut(head_dim * n);
        let ys = mine.chunks_mut(segment.len * head_dim);
        tasks
            .extend(states.zip(ys).enumerate().map(|(head, (state, y))| (segment, head, state, y)));
    }
    let arch = Arch::new();
    parallel::each(2 * rows * heads * head_dim * n, tasks, |(segment, head, state, y)| {
        if segment.fresh() {
            state.fill(0.0);
        }
        let [a_log, d, dt_bias] = [0, 1, 2].map(|row| params[row * heads + head]);
        let (rate, group) = (-a_log.exp(), head / (heads / groups));
        for (row, y) in segment.rows().zip(y.chunks_mut(head_dim)) {
            let step = softplus(dt.row(row)[head] + dt_bias).clamp(least, most);
            arch.dispatch(Advance {
                state,
                decay: exp_or_zero(rate * step),
                step,
                d,
                x: &x.row(row)[head * head_dim..][..head_dim],
                b: &b.row(row)[group * n..][..n],
                c: &c.row(row)[group * n..][..n],
                y,
            });
        }
    });
    drop(slots);
    let mut y = y.as_slice();
    for segment in &segments {
        for (row, index) in segment.rows().zip(0..) {
            for (head, out) in out.row(row).chunks_mut(head_dim).enumerate() {
                out.copy_from_slice(&y[(head * segment.len + index) * head_dim..][..head_dim]);
            }
        }
        y = &y[segment.len * heads * head_dim..];
    }
}

/// Decays underflow to zero where the vectorisable exponential stops short of it.
fn exp_or_zero(x: f32) -> f32 {
    if x < -87.0 { x.exp() } else { exp(x) }
}

/// One row of one head: `S <- decay S + step x b^T`, `y = S c + d x`.
struct Advance<'a> {
    /// `[head_dim, n]`
    state: &'a mut [f32],
    decay: f32,
    step: f32,
    d: f32,
    /// `[head_dim]`
    x: &'a [f32],
    /// `[n]`
    b: &'a [f32],
    /// `[n]`
    c: &'a [f32],
    /// `[head_dim]`
    y: &'a mut [f32],
}

/// Channels that advance together: `b` and `c` are loaded once for all.
const TOGETHER: usize = 4;

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (n, state) = (self.b.len(), std::mem::take(&mut self.state));
        let whole = self.x.len() / TOGETHER * TOGETHER;
        let (blocks, rest) = state.split_at_mut(whole * n);
        for (block, state) in blocks.chunks_exact_mut(TOGETHER * n).enumerate() {
            let (low, high) = state.split_at_mut(2 * n);
            let ((s0, s1), (s2, s3)) = (low.split_at_mut(n), high.split_at_mut(n));
            self.channels(simd, block * TOGETHER, [s0, s1, s2, s3]);
        }
        for (channel, state) in (whole..).zip(rest.chunks_exact_mut(n)) {
            self.channels(simd, channel, [state]);
        }
    }
}

impl Advance<'_> {
    /// Advances the states of `P` channels from `first` on.
    #[inline(always)]
    fn channels<S: Simd, const P: usize>(
        &mut self,
        simd: S,
        first: usize,
        states: [&mut [f32]; P],
    ) {
        let ((b, b_tail), (c, c_tail)) = (S::as_simd_f32s(self.b), S::as_simd_f32s(self.c));
        let decay = simd.splat_f32s(self.decay);
        let inputs: [f32; P] = std::array::from_fn(|p| self.step * self.x[first + p]);
        let splats = inputs.map(|input| simd.splat_f32s(input));
        let states = states.map(|s| S::as_mut_simd_f32s(s));
        let mut tails = [0.0; P];
        let mut sums = [simd.splat_f32s(0.0); P];
        for (i, (b, c)) in b.iter().zip(c).enumerate() {
            for p in 0..P {
                let s = &mut states[p].0[i];
                *s = fma(simd, decay, *s, simd.mul_f32s(splats[p], *b));
                sums[p] = fma(simd, *s, *c, sums[p]);
            }
        }
        for p in 0..P {
            for ((s, b), c) in states[p].1.iter_mut().zip(b_tail).zip(c_tail) {
                *s = self.decay * *s + inputs[p] * b;
                tails[p] += *s * c;
            }
            let total = simd.reduce_sum_f32s(sums[p]) + tails[p];
            self.y[first + p] = total + self.d * self.x[first + p];
        }
    }
}
