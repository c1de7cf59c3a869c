//! `x *= factor`, in place.

use super::add::SHAPES;
use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// Multiplies a tensor by a number of the family: logit scales, key multipliers.
pub struct Scale<B: Backend> {
    /// What is multiplied, in place. `[rows, cols]`
    pub x: Tensor<B>,
    /// The factor.
    pub factor: f32,
}

impl<B: Backend> Op<B> for Scale<B> {
    const NAME: &'static str = "scale";

    fn check(&self) -> Result<()> {
        check::activation(Self::NAME, "x", &self.x, self.x.shape(), "rows, cols")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![Operand::Tensor("x", &self.x, Access::Update)]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.scale(self)
    }
}

impl Scale<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let x: Vec<f32> = self.x.dense().iter().map(|v| v * self.factor).collect();
        self.x.fill(&x);
    }
}

/// A shape and a factor.
pub(super) struct ScaleCase {
    shape: [usize; 2],
    factor: f32,
}

/// Tile edges and factors of families.
pub(super) fn cases() -> Vec<ScaleCase> {
    let mut cases: Vec<_> = SHAPES.map(|shape| ScaleCase { shape, factor: 0.125 }).into();
    cases.extend([12.0, -0.0625, 0.0].map(|factor| ScaleCase { shape: [3, 100], factor }));
    cases
}

impl Case for ScaleCase {
    fn name(&self) -> String {
        format!("{:?} by {}", self.shape, self.factor)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let [rows, cols] = self.shape;
        let before = rig.stream("x").values(Fill::Normal(1.0), rows * cols);
        let dtype = rig.activations();
        rig.step().run(&Scale {
            x: rig.watched_of("x", rows, cols, dtype, &before, Tolerance::F32)?,
            factor: self.factor,
        })
    }
}
