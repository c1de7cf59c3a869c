//! `out[r] = argmax x[r]`, ties to the lowest index.

use super::check;
use super::moe_route::best;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

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

/// Rows of logits for the cases of choices.
#[derive(Clone, Copy, Debug)]
pub(super) enum Logits {
    /// No two alike.
    Normal,
    /// Small whole numbers: every rank is shared by many.
    Ties,
    /// The same everywhere.
    All(f32),
    /// Falling, but for the largest, in the last column.
    LastColumn,
}

impl Logits {
    pub(super) fn draw<B: Backend>(self, rig: &Rig<'_, B>, [rows, cols]: [usize; 2]) -> Vec<f32> {
        let mut stream = rig.stream("x");
        match self {
            Self::Normal => stream.values(Fill::Normal(4.0), rows * cols),
            Self::Ties => (0..rows * cols).map(|_| stream.below(5) as f32 + 1.0).collect(),
            Self::All(value) => vec![value; rows * cols],
            Self::LastColumn => {
                let value =
                    |i: usize| if i % cols + 1 == cols { 1.0 } else { -((i % cols) as f32) };
                (0..rows * cols).map(value).collect()
            }
        }
    }
}

/// A shape and how the logits are drawn.
pub(super) struct ArgmaxCase {
    shape: [usize; 2],
    logits: Logits,
}

/// Tile edges, vocabularies, ties, the last column, nothing allowed.
pub(super) fn cases() -> Vec<ArgmaxCase> {
    let shapes =
        [[1, 1], [3, 63], [2, 64], [5, 65], [4, 1025], [64, 257], [1, 65_537], [1, 131_072]];
    let mut cases = Vec::new();
    for logits in [Logits::Normal, Logits::Ties, Logits::LastColumn] {
        cases.extend(shapes.map(|shape| ArgmaxCase { shape, logits }));
    }
    for value in [0.0, -1e30, f32::NEG_INFINITY] {
        cases.push(ArgmaxCase { shape: [2, 1000], logits: Logits::All(value) });
    }
    cases
}

impl Case for ArgmaxCase {
    fn name(&self) -> String {
        format!("{:?} {:?}", self.shape, self.logits)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let values = self.logits.draw(rig, self.shape);
        rig.step().run(&Argmax {
            x: rig.input_of("x", self.shape, DType::F32, &values)?,
            out: rig.output_u32("out", self.shape[0], 1)?,
        })
    }
}
