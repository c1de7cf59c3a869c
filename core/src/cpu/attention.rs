//! Rotary embedding, the cache and attention: a task a row and head.

use super::parallel;
use super::simd::{add_scaled, dots, exp};
use super::{Cpu, buffer::Rows};
use crate::ops::{Attention, KvAppend, Rope};
use pulp::{Arch, Simd, WithSimd};

pub(super) fn rope(op: &Rope<Cpu>) {
    let Some(mut x) = op.x.f32_rows_mut() else { return op.reference() };
    let inv_freq = op.inv_freq.dense();
    let pairs = inv_freq.len();
    for segment in op.segments.list() {
        for (row, position) in segment.rows().zip(segment.position..) {
            // The same turns for every head of the row.
            let (sin, cos): (Vec<f32>, Vec<f32>) =
                inv_freq.iter().map(|f| (position as f32 * f).sin_cos()).unzip();
            for head in x.row(row).chunks_mut(op.head_dim) {
                let (a, b) = head.split_at_mut(pairs);
                for (((a, b), sin), cos) in a.iter_mut().zip(b).zip(&sin).zip(&cos) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
}

pub(super) fn kv_append(op: &KvAppend<Cpu>) {
    for (new, cache) in [(&op.k, &op.cache.k), (&op.v, &op.cache.v)] {
        let (Some(new), Some(mut cache)) = (new.f32_rows(), cache.f32_rows_mut()) else {
            return op.reference();
        };
        for segment in op.segments.list() {
            let start = segment.slot * op.cache.context + segment.position;
            for (row, to) in segment.rows().zip(start..) {
                cache.row(to).copy_from_slice(new.row(row));
            }
        }
    }
}

pub(super) fn attention(op: &Attention<Cpu>) {
    let inputs = [&op.q, &op.cache.k, &op.cache.v].map(|t| t.f32_rows());
    let (Some(mut out), [Some(q), Some(k), Some(v)]) = (op.out.f32_rows_mut(), inputs) else {
        return op.reference();
    };
    let (heads, width) = (op.heads(), op.head_dim);
    let mut targets: Vec<_> = out.rows().map(Some).collect();
    let mut tasks = Vec::new();
    let mut seen_rows = 0;
    for segment in op.segments.list() {
        for (row, position) in segment.rows().zip(segment.position..) {
            let heads = targets[row].take().unwrap_or_default().chunks_mut(width).enumerate();
            seen_rows += position + 1;
            tasks.extend(heads.map(|(head, out)| Head {
                query: &q.row(row)[head * width..][..width],
                k: &k,
                v: &v,
                first: segment.slot * op.cache.context,
                seen: position + 1,
                column: head / (op.heads() / op.kv_heads()) * width,
                scale: op.scale,
                out,
            }));
        }
    }
    let arch = Arch::new();
    parallel::each(2 * seen_rows * heads * width, tasks, |head| arch.dispatch(head));
}

/// One head of one row.
struct Head<'a> {
    /// `[head_dim]`
    query: &'a [f32],
    k: &'a Rows<'a>,
    v: &'a Rows<'a>,
    /// Cache row of position 0.
    first: usize,
    /// Positions that the row sees.
    seen: usize,
    /// First column of the key/value head.
    column: usize,
    scale: f32,
    /// `[head_dim]`
    out: &'a mut [f32],
}

/// Positions whose scores are held at once.
const BLOCK: usize = 256;

impl WithSimd for Head<'_> {
    type Output = ();

    /// Online softmax by blocks: what is summed so far shrinks when a block has a larger score.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = self.query.len();
        self.out.fill(0.0);
        let (mut largest, mut sum) = (f32::NEG_INFINITY, 0.0);
        let mut scores = [0.0; BLOCK];
        for start in (0..self.seen).step_by(BLOCK) {
            let scores = &mut scores[..BLOCK.min(self.seen - start)];
            let key = |t: usize| &self.k.row(self.first + start + t)[self.column..][..width];
            let value = |t: usize| &self.v.row(self.first + start + t)[self.column..][..width];
            let (fours, rest) = scores.as_chunks_mut::<4>();
            let whole = 4 * fours.len();
            for (i, scores) in fours.iter_mut().enumerate() {
                *scores = dots(simd, self.query, [0, 1, 2, 3].map(|t| key(4 * i + t)));
            }
            for (t, score) in (whole..).zip(rest) {
                [*score] = dots(simd, self.query, [key(t)]);
            }
            scores.iter_mut().for_each(|score| *score *= self.scale);
            let block = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            if block > largest {
                let shrink = if sum == 0.0 { 0.0 } else { exp(largest - block) };
                sum *= shrink;
                self.out.iter_mut().for_each(|v| *v *= shrink);
                largest = block;
            }
            scores.iter_mut().for_each(|s| *s = exp(*s - largest));
            sum += scores.iter().sum::<f32>();
            let (fours, rest) = scores.as_chunks::<4>();
            for (i, weights) in fours.iter().enumerate() {
                add_scaled(simd, self.out, *weights, [0, 1, 2, 3].map(|t| value(4 * i + t)));
            }
            for (t, weight) in (whole..).zip(rest) {
                add_scaled(simd, self.out, [*weight], [value(t)]);
            }
        }
        self.out.iter_mut().for_each(|v| *v /= sum);
    }
}
