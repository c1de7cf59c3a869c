//! `out[row * top_k + choice] = f(x[input row] weight[ids[row, choice]]^T)`: each pair meets its own expert.

use super::activate::Activation;
use super::check;
use super::matmul::dot;
use super::moe_group::{Choices, ExpertGroups, sorted};
use crate::backend::Backend;
use crate::batch::to_usize;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;
use crate::weight::{Format, Weight};

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

/// The shape of a bank's product.
pub(super) struct MoeMatmulCase {
    /// Rows, choices of each, experts.
    choices: [usize; 3],
    /// Outputs, inputs.
    sizes: [usize; 2],
    format: Format,
    input: ExpertInput,
    grouped: bool,
    activation: Activation,
}

/// Every format, both inputs, sorted and not; one row, few, and many for some experts; functions of families.
pub(super) fn cases() -> Vec<MoeMatmulCase> {
    let shapes = [
        ([1, 1, 1], [1, 16]),
        ([1, 6, 16], [65, 48]),
        ([3, 2, 4], [33, 80]),
        ([17, 2, 3], [64, 64]),
        ([70, 1, 2], [40, 112]),
        ([130, 2, 2], [17, 32]),
    ];
    let mut cases = Vec::new();
    for format in Format::ALL {
        for input in [ExpertInput::Row, ExpertInput::Pair] {
            for grouped in [false, true] {
                let activation = Activation::Identity;
                cases.extend(shapes.map(|(choices, sizes)| MoeMatmulCase {
                    choices,
                    sizes,
                    format,
                    input,
                    grouped,
                    activation,
                }));
            }
        }
    }
    let wide = |grouped, activation| MoeMatmulCase {
        choices: [2, 2, 4],
        sizes: [24, 1856],
        format: Format::Nvfp4,
        input: ExpertInput::Row,
        grouped,
        activation,
    };
    // Whole runs of 64 columns, several of them, and experts of any popularity.
    let runs = [([40, 3, 4], [36, 192]), ([120, 2, 4], [132, 128]), ([330, 2, 5], [132, 320])];
    // The same in eight outputs at a time.
    let eights = [([40, 3, 4], [40, 192]), ([120, 2, 4], [136, 128]), ([330, 2, 5], [136, 320])];
    for (input, other) in
        [(ExpertInput::Row, Activation::Silu), (ExpertInput::Pair, Activation::Identity)]
    {
        let case = |(choices, sizes), format, activation| MoeMatmulCase {
            choices,
            sizes,
            format,
            input,
            grouped: true,
            activation,
        };
        cases.extend(runs.map(|run| case(run, Format::Nvfp4, Activation::Relu2)));
        cases.extend(eights.map(|run| case(run, Format::BF16, other)));
    }
    for activation in [Activation::Relu2, Activation::Silu, Activation::Gelu, Activation::Sigmoid] {
        cases.extend([wide(false, activation), wide(true, activation)]);
    }
    cases
}

impl Case for MoeMatmulCase {
    fn name(&self) -> String {
        let Self { choices, sizes, format, input, grouped, activation } = self;
        let grouped = if *grouped { "grouped" } else { "as chosen" };
        format!("{choices:?} {sizes:?} {format} by {input:?} {grouped} {activation:?}")
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let ([rows, top_k, experts], [outputs, inputs]) = (self.choices, self.sizes);
        let count = u32::try_from(experts).unwrap_or(u32::MAX);
        let ids = Choices::Spread.draw(&mut rig.stream("ids"), [rows, top_k], count);
        let groups = sorted(rig, &ids, experts)?;
        let input_rows = if self.input == ExpertInput::Row { rows } else { rows * top_k };
        let dtype = rig.activations();
        rig.step().run(&MoeMatmul {
            x: rig.activation("x", input_rows, inputs, Fill::Normal(1.0))?,
            input: self.input,
            weight: &rig.weight("weight", experts, outputs, inputs, self.format)?,
            ids: rig.table("ids", rows, top_k, &ids)?,
            groups: self.grouped.then_some(groups),
            activation: self.activation,
            // relu^2 doubles the relative error of a value of up to 5 and squares its size.
            out: rig.output("out", rows * top_k, outputs, dtype, Tolerance::F32.scaled(5.0))?,
        })
    }
}
