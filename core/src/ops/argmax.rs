//! `out[r] = argmax x[r]`, ties to the lowest index.

use super::check;
use super::moe_route::best;
use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// The greedy token of each row. Rows hold no NaN.
pub struct Argmax<B: Backend> {
    /// Logits. `[rows, cols] f32`
    pub x: Tensor<B>,
    /// Index of the largest value of each row. `[rows, 1] u32`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for Argmax<B> {
    const NAME: &'static str = "argmax";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.x.shape();
        check::f32(Self::NAME, "x", &self.x, [rows, cols], "rows, cols")?;
        check::ensure(Self::NAME, cols > 0, || "x has no columns".into())?;
        check::u32(Self::NAME, "out", &self.out, [rows, 1], "rows of x, 1")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("out", &self.out, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.argmax(self)
    }
}

impl Argmax<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let x = self.x.dense();
        // A column index of an f32 row in memory fits u32.
        let out: Vec<u32> = x.chunks(self.x.cols()).map(|row| best(row, 1)[0] as u32).collect();
        self.out.fill_u32(&out);
    }
}
