//! `out[row * top_k + choice] = f(x[input row] weight[ids[row, choice]]^T)`: each pair meets its own expert.

use super::activate::Activation;
use super::check;
use super::matmul::dot;
use super::moe_group::ExpertGroups;
use crate::backend::Backend;
use crate::batch::to_usize;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;
use crate::weight::Weight;

/// Which row of `x` a pair reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertInput {
    /// Row `row`: the first product, all choices of a token read the token's activations.
    Row,
    /// Row `row * top_k + choice`: the second product reads the pair's own.
    Pair,
}

/// A product with the chosen experts of a bank.
pub struct MoeMatmul<'a, B: Backend> {
    /// Input. `[rows or rows * top_k, inputs]`
    pub x: Tensor<B>,
    /// Which row of `x` a pair reads.
    pub input: ExpertInput,
    /// The bank. `[experts, outputs, inputs]`
    pub weight: &'a Weight<B>,
    /// Chosen experts. `[rows, top_k] u32`
    pub ids: Tensor<B>,
    /// The same choices sorted by expert, where the step has many rows.
    pub groups: Option<ExpertGroups<B>>,
    /// Applied to the result.
    pub activation: Activation,
    /// Output, a row for each pair. `[rows * top_k, outputs]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for MoeMatmul<'_, B> {
    const NAME: &'static str = "moe_matmul";

    fn check(&self) -> Result<()> {
        let [rows, top_k] = self.ids.shape();
        let (inputs, outputs) = (self.x.cols(), self.out.cols());
        let pairs = rows * top_k;
        let input_rows = match self.input {
            ExpertInput::Row => rows,
            ExpertInput::Pair => pairs,
        };
        check::activation(Self::NAME, "x", &self.x, [input_rows, inputs], "input rows, inputs")?;
        check::u32(Self::NAME, "ids", &self.ids, [rows, top_k], "rows, top_k")?;
        let experts = self.weight.experts;
        check::weight(
            Self::NAME,
            "weight",
            self.weight,
            [experts, outputs, inputs],
            "experts, cols of out, cols of x",
        )?;
        if let Some(groups) = &self.groups {
            groups.check(Self::NAME, pairs, experts)?;
        }
        check::activation(Self::NAME, "out", &self.out, [pairs, outputs], "rows * top_k, outputs")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        let mut list = vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Weight("weight", self.weight),
            Operand::Tensor("ids", &self.ids, Access::Read),
        ];
        if let Some(groups) = &self.groups {
            list.push(Operand::Tensor("groups.order", &groups.order, Access::Read));
            list.push(Operand::Tensor("groups.offsets", &groups.offsets, Access::Read));
        }
        list.push(Operand::Tensor("out", &self.out, Access::Write));
        list
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.moe_matmul(self)
    }
}

impl MoeMatmul<'_, Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let top_k = self.ids.cols();
        let (inputs, outputs) = (self.x.cols(), self.out.cols());
        let x = self.x.dense();
        let mut out = Vec::with_capacity(self.out.rows() * outputs);
        for (pair, id) in self.ids.dense_u32().into_iter().enumerate() {
            let row = match self.input {
                ExpertInput::Row => pair / top_k,
                ExpertInput::Pair => pair,
            };
            let x = &x[row * inputs..][..inputs];
            let product = |o| self.activation.apply(dot(x, &self.weight.row(to_usize(id), o)));
            out.extend((0..outputs).map(product));
        }
        self.out.fill(&out);
    }
}
