//! `out += scale * x`, in place.

use super::check;
use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// Adds a scaled tensor to another.
pub struct Add<B: Backend> {
    /// What is added. `[rows, cols]`
    pub x: Tensor<B>,
    /// Multiplies `x`.
    pub scale: f32,
    /// What grows, in place. `[rows, cols]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for Add<B> {
    const NAME: &'static str = "add";

    fn check(&self) -> Result<()> {
        let shape = self.x.shape();
        check::activation(Self::NAME, "x", &self.x, shape, "rows, cols")?;
        check::activation(Self::NAME, "out", &self.out, shape, "shape of x")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("out", &self.out, Access::Update),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.add(self)
    }
}

impl Add<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let x = self.x.dense();
        let out: Vec<f32> =
            self.out.dense().iter().zip(&x).map(|(o, x)| o + self.scale * x).collect();
        self.out.fill(&out);
    }
}
