//! `x *= factor`, in place.

use super::check;
use crate::backend::Backend;
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
