//! `out[r] = scale * table[tokens[r]]`.

use super::check;
use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;
use crate::weight::Weight;

/// Looks token embeddings up. Padding rows hold token 0.
pub struct Embed<'a, B: Backend> {
    /// Token ids, below the table's rows. `[rows, 1] u32`
    pub tokens: Tensor<B>,
    /// Embedding table. `[vocabulary, hidden]`
    pub table: &'a Weight<B>,
    /// Embedding multiplier of the family, 1 for most.
    pub scale: f32,
    /// Start of the residual stream. `[rows, hidden] f32`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for Embed<'_, B> {
    const NAME: &'static str = "embed";

    fn check(&self) -> Result<()> {
        let rows = self.out.rows();
        check::u32(Self::NAME, "tokens", &self.tokens, [rows, 1], "rows of out, 1")?;
        check::f32(Self::NAME, "out", &self.out, [rows, self.table.cols], "rows, hidden")?;
        check::weight(
            Self::NAME,
            "table",
            self.table,
            [1, self.table.rows, self.out.cols()],
            "1, vocabulary, hidden",
        )
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("tokens", &self.tokens, Access::Read),
            Operand::Weight("table", self.table),
            Operand::Tensor("out", &self.out, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.embed(self)
    }
}

impl Embed<'_, Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let mut out = Vec::with_capacity(self.out.rows() * self.out.cols());
        for token in self.tokens.dense_u32() {
            let row = self.table.row(0, crate::batch::to_usize(token));
            out.extend(row.iter().map(|v| self.scale * v));
        }
        self.out.fill(&out);
    }
}
