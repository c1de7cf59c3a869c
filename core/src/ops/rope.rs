//! Rotary position embedding, half-split: of each head's first `2 * pairs` columns, column `i` turns with column
//! `i + pairs` by the angle `position * inv_freq[i]`. In place.

use super::check;
use crate::backend::Backend;
use crate::batch::Segments;
use crate::conformance::{Case, Fill, Ragged, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// Rotates queries or keys by their positions, angles in f32.
pub struct Rope<B: Backend> {
    /// Queries or keys, in place. `[rows, heads * head_dim]`
    pub x: Tensor<B>,
    /// Angle per position of every rotated pair; scaled variants change these alone. `[1, pairs] f32`
    pub inv_freq: Tensor<B>,
    /// Width of one head, at least `2 * pairs`; what is beyond is left alone.
    pub head_dim: usize,
    /// Which rows are whose.
    pub segments: Segments<B>,
}

impl<B: Backend> Op<B> for Rope<B> {
    const NAME: &'static str = "rope";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.x.shape();
        let pairs = self.inv_freq.cols();
        check::activation(Self::NAME, "x", &self.x, [rows, cols], "rows, heads * head_dim")?;
        check::f32(Self::NAME, "inv_freq", &self.inv_freq, [1, pairs], "1, rotated pairs")?;
        check::ensure(Self::NAME, self.head_dim > 0 && cols.is_multiple_of(self.head_dim), || {
            format!("head_dim {} does not divide {cols} columns", self.head_dim)
        })?;
        check::ensure(Self::NAME, 2 * pairs <= self.head_dim, || {
            format!("{pairs} pairs do not fit a head of {}", self.head_dim)
        })?;
        check::segments(Self::NAME, &self.segments, rows)
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Update),
            Operand::Tensor("inv_freq", &self.inv_freq, Access::Read),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.rope(self)
    }
}

impl Rope<Cpu> {
    /// The definition. Rows of no segment are left as they are.
    pub fn reference(&self) {
        let cols = self.x.cols();
        let inv_freq = self.inv_freq.dense();
        let pairs = inv_freq.len();
        let mut x = self.x.dense();
        for segment in self.segments.list() {
            for row in segment.rows() {
                let position = (segment.position + row - segment.first_row) as f32;
                for head in x[row * cols..][..cols].chunks_mut(self.head_dim) {
                    for (i, frequency) in inv_freq.iter().enumerate() {
                        let (sin, cos) = (position * frequency).sin_cos();
                        let (a, b) = (head[i], head[i + pairs]);
                        head[i] = a * cos - b * sin;
                        head[i + pairs] = b * cos + a * sin;
                    }
                }
            }
        }
        self.x.fill(&x);
    }
}

/// A batch, heads and how much of them turns.
pub(super) struct RopeCase {
    ragged: Ragged,
    heads: usize,
    head_dim: usize,
    pairs: usize,
}

/// Whole and partial heads, one pair, none but one head, tile edges.
pub(super) fn cases() -> Vec<RopeCase> {
    let sizes =
        [(1, 2, 1), (4, 24, 12), (3, 64, 32), (2, 80, 16), (32, 128, 64), (1, 256, 32), (5, 96, 7)];
    let mut cases = Vec::new();
    for ragged in Ragged::ALL {
        cases.extend(sizes.map(|(heads, head_dim, pairs)| RopeCase {
            ragged,
            heads,
            head_dim,
            pairs,
        }));
    }
    cases
}

impl Case for RopeCase {
    fn name(&self) -> String {
        let Self { ragged, heads, head_dim, pairs } = self;
        format!("{heads} heads of {head_dim}, {pairs} pairs, {}", ragged.name())
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let (rows, cols, pairs) = (self.ragged.rows(), self.heads * self.head_dim, self.pairs);
        let frequencies: Vec<f32> =
            (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / pairs as f32)).collect();
        let x = rig.stream("x").values(Fill::Normal(1.0), rows * cols);
        let dtype = rig.activations();
        // An angle of 400 is off by half a unit in its last place, 1.5e-5, where it is not the f32 product.
        rig.step().run(&Rope {
            x: rig.watched_of("x", rows, cols, dtype, &x, Tolerance::F32.scaled(4.0))?,
            inv_freq: rig.param_of("inv_freq", 1, pairs, &frequencies)?,
            head_dim: self.head_dim,
            segments: rig.segments(&self.ragged)?,
        })
    }
}
