//! The `k` largest values of each row with their indices, largest first, ties to the lowest index.

use super::argmax::Logits;
use super::check;
use super::moe_route::best;
use crate::backend::Backend;
use crate::conformance::{Case, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

/// Candidates for sampling. Rows hold no NaN.
pub struct TopK<B: Backend> {
    /// Logits. `[rows, cols] f32`
    pub x: Tensor<B>,
    /// Largest values, falling. `[rows, k] f32`
    pub values: Tensor<B>,
    /// Their columns. `[rows, k] u32`
    pub indices: Tensor<B>,
}

impl<B: Backend> Op<B> for TopK<B> {
    const NAME: &'static str = "top_k";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.x.shape();
        let k = self.values.cols();
        check::f32(Self::NAME, "x", &self.x, [rows, cols], "rows, cols")?;
        check::ensure(Self::NAME, (1..=cols.min(1024)).contains(&k), || {
            format!("k is {k}, want 1 to {} (columns of x, at most 1024)", cols.min(1024))
        })?;
        check::f32(Self::NAME, "values", &self.values, [rows, k], "rows of x, k")?;
        check::u32(Self::NAME, "indices", &self.indices, [rows, k], "rows of x, k")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("values", &self.values, Access::Write),
            Operand::Tensor("indices", &self.indices, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.top_k(self)
    }
}

impl TopK<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        for row in self.x.dense().chunks(self.x.cols()) {
            let chosen = best(row, self.values.cols());
            values.extend(chosen.iter().map(|&i| row[i]));
            // A column index of an f32 row in memory fits u32.
            indices.extend(chosen.iter().map(|&i| i as u32));
        }
        self.values.fill(&values);
        self.indices.fill_u32(&indices);
    }
}

/// A shape, a count and how the logits are drawn.
pub(super) struct TopKCase {
    shape: [usize; 2],
    k: usize,
    logits: Logits,
}

/// One, all, and as many as sampling asks for; vocabularies; ties.
pub(super) fn cases() -> Vec<TopKCase> {
    let shapes = [
        ([1, 1], 1),
        ([3, 64], 64),
        ([2, 65], 20),
        ([4, 1025], 1024),
        ([2, 5000], 2),
        ([1, 65_537], 40),
        ([1, 131_072], 64),
    ];
    let mut cases = Vec::new();
    for logits in [Logits::Normal, Logits::Ties, Logits::LastColumn] {
        cases.extend(shapes.map(|(shape, k)| TopKCase { shape, k, logits }));
    }
    cases.push(TopKCase { shape: [2, 1000], k: 50, logits: Logits::All(0.5) });
    cases
}

impl Case for TopKCase {
    fn name(&self) -> String {
        format!("{} of {:?} {:?}", self.k, self.shape, self.logits)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let values = self.logits.draw(rig, self.shape);
        let rows = self.shape[0];
        rig.step().run(&TopK {
            x: rig.input_of("x", self.shape, DType::F32, &values)?,
            values: rig.output("values", rows, self.k, DType::F32, Tolerance::EXACT)?,
            indices: rig.output_u32("indices", rows, self.k)?,
        })
    }
}
