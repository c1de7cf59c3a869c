//! `out[i] = x[indices[i]]`.

use super::check;
use crate::backend::Backend;
use crate::batch::to_usize;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// Gathers the rows whose logits are wanted.
pub struct SelectRows<B: Backend> {
    /// Source. `[rows, cols]`
    pub x: Tensor<B>,
    /// Row of `x` for each row of `out`, below `rows`. `[count, 1] u32`
    pub indices: Tensor<B>,
    /// Target. `[count, cols]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for SelectRows<B> {
    const NAME: &'static str = "select_rows";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.x.shape();
        let count = self.indices.rows();
        check::activation(Self::NAME, "x", &self.x, [rows, cols], "rows, cols")?;
        check::u32(Self::NAME, "indices", &self.indices, [count, 1], "count, 1")?;
        check::activation(Self::NAME, "out", &self.out, [count, cols], "count, cols of x")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("indices", &self.indices, Access::Read),
            Operand::Tensor("out", &self.out, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.select_rows(self)
    }
}

impl SelectRows<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        for (i, index) in self.indices.dense_u32().into_iter().enumerate() {
            let row = self.x.row_range(to_usize(index), 1).dense();
            self.out.row_range(i, 1).fill(&row);
        }
    }
}

/// Rows to gather.
pub(super) struct SelectRowsCase {
    shape: [usize; 2],
    indices: &'static [u32],
}

/// One, all in another order, repeated, the last alone.
pub(super) fn cases() -> Vec<SelectRowsCase> {
    let lists: [([usize; 2], &[u32]); 5] = [
        ([1, 1], &[0]),
        ([3, 64], &[2, 0, 1]),
        ([5, 65], &[4, 4, 0, 4, 1, 1]),
        ([300, 129], &[299]),
        ([2, 2688], &[1, 0]),
    ];
    lists.map(|(shape, indices)| SelectRowsCase { shape, indices }).into()
}

impl Case for SelectRowsCase {
    fn name(&self) -> String {
        format!("{:?} of {:?}", self.indices, self.shape)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let ([rows, cols], count) = (self.shape, self.indices.len());
        rig.step().run(&SelectRows {
            x: rig.activation("x", rows, cols, Fill::Normal(1.0))?,
            indices: rig.table("indices", count, 1, self.indices)?,
            out: rig.output("out", count, cols, rig.activations(), Tolerance::EXACT)?,
        })
    }
}
