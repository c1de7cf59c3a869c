//! `out[r] = scale * table[tokens[r]]`.

use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, Weight};

/// Looks token embeddings up. Padding rows hold token 0.
pub struct Embed<'a, B: Backend> {
    /// Token ids, below the table's rows; what one past them gives is not defined, and nothing outside the table is read: a
    /// choice of the device that failed leaves such a token. `[rows, 1] u32`
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
            let token = crate::batch::to_usize(token).min(self.table.rows - 1);
            let row = self.table.row(0, token);
            out.extend(row.iter().map(|v| self.scale * v));
        }
        self.out.fill(&out);
    }
}

/// A table and tokens.
pub(super) struct EmbedCase {
    format: Format,
    table: [usize; 2],
    tokens: &'static [u32],
    scale: f32,
}

/// Every format; first, last and repeated tokens; widths that are multiples of 16 alone.
pub(super) fn cases() -> Vec<EmbedCase> {
    let mut cases = Vec::new();
    for format in Format::ALL {
        let case = |table, tokens, scale| EmbedCase { format, table, tokens, scale };
        cases.push(case([1, 16], &[0], 1.0));
        cases.push(case([7, 48], &[6, 0, 6, 6, 3], 1.0));
        cases.push(case([5, 2688], &[4, 1], 12.0));
        cases.push(case(
            [300, 80],
            &[299, 255, 256, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
            1.0,
        ));
        if format != Format::Nvfp4 {
            cases.push(case([3, 1], &[2, 1], 1.0));
            cases.push(case([9, 65], &[8, 7], -0.5));
        }
    }
    cases
}

impl Case for EmbedCase {
    fn name(&self) -> String {
        let Self { format, table, tokens, scale } = self;
        format!("{} tokens of {table:?} {format} scale {scale}", tokens.len())
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let ([vocabulary, hidden], rows) = (self.table, self.tokens.len());
        rig.step().run(&Embed {
            tokens: rig.table("tokens", rows, 1, self.tokens)?,
            table: &rig.weight("table", 1, vocabulary, hidden, self.format)?,
            scale: self.scale,
            out: rig.output("out", rows, hidden, DType::F32, Tolerance::F32)?,
        })
    }
}
