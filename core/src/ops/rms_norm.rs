//! `out = weight * x / sqrt(mean over each group of x^2 + eps)`, in f32.

use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// Root-mean-square norm over contiguous groups of columns (models.md of the families: pre-norms, final norm,
/// per-head query and key norms).
pub struct RmsNorm<B: Backend> {
    /// Input. `[rows, cols]`
    pub x: Tensor<B>,
    /// Gain. `[1, cols] f32`
    pub weight: Tensor<B>,
    /// Number of groups of `cols / groups` columns that are normalised apart.
    pub groups: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Output. `[rows, cols]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for RmsNorm<B> {
    const NAME: &'static str = "rms_norm";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.x.shape();
        check::activation(Self::NAME, "x", &self.x, [rows, cols], "rows, cols")?;
        check::f32(Self::NAME, "weight", &self.weight, [1, cols], "1, cols of x")?;
        check::activation(Self::NAME, "out", &self.out, [rows, cols], "shape of x")?;
        check::ensure(Self::NAME, self.groups > 0 && cols.is_multiple_of(self.groups), || {
            format!("{} groups do not divide {cols} columns", self.groups)
        })
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("weight", &self.weight, Access::Read),
            Operand::Tensor("out", &self.out, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.rms_norm(self)
    }
}

impl RmsNorm<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let mut out = self.x.dense();
        let weight = self.weight.dense();
        for row in out.chunks_mut(weight.len()) {
            normalise(row, self.groups, self.eps);
            row.iter_mut().zip(&weight).for_each(|(v, w)| *v *= w);
        }
        self.out.fill(&out);
    }
}

/// Divides every group of `row` by its root mean square.
pub(super) fn normalise(row: &mut [f32], groups: usize, eps: f32) {
    let width = row.len() / groups;
    for group in row.chunks_mut(width) {
        let mean = group.iter().map(|v| v * v).sum::<f32>() / width as f32;
        let inverse = 1.0 / (mean + eps).sqrt();
        group.iter_mut().for_each(|v| *v *= inverse);
    }
}

/// A shape and what is special about its numbers.
pub(super) struct RmsNormCase {
    rows: usize,
    cols: usize,
    groups: usize,
    fill: Fill,
}

/// Tile edges, real widths, groups, and values whose squares overflow f16.
pub(super) fn cases() -> Vec<RmsNormCase> {
    let normal = Fill::Normal(1.0);
    let shapes = [
        (1, 1, 1),
        (1, 64, 1),
        (3, 63, 1),
        (2, 65, 1),
        (5, 2688, 1),
        (2, 4096, 8),
        (4, 96, 6),
        (1, 1024, 1),
    ];
    let mut cases: Vec<_> =
        shapes.map(|(rows, cols, groups)| RmsNormCase { rows, cols, groups, fill: normal }).into();
    cases.push(RmsNormCase { rows: 2, cols: 256, groups: 2, fill: Fill::Normal(1e4) });
    cases.push(RmsNormCase { rows: 2, cols: 256, groups: 1, fill: Fill::Constant(0.0) });
    cases
}

impl Case for RmsNormCase {
    fn name(&self) -> String {
        format!("[{}, {}] groups {} {:?}", self.rows, self.cols, self.groups, self.fill)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        rig.step().run(&RmsNorm {
            x: rig.activation("x", self.rows, self.cols, self.fill)?,
            weight: rig.param("weight", 1, self.cols, Fill::NearOne(0.2))?,
            groups: self.groups,
            eps: 1e-5,
            out: rig.output("out", self.rows, self.cols, rig.activations(), Tolerance::F32)?,
        })
    }
}
