//! Gated norm of a Mamba2 mixer: `norm(y * silu(z))` or `norm(y) * silu(z)`, per group.

use super::activate::silu;
use super::check;
use super::rms_norm::normalise;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// Where the gate stands relative to the norm; a property of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// `weight * norm(y * silu(z))`: Mamba2, Nemotron-H, Granite, Falcon-H1.
    GateThenNorm,
    /// `weight * norm(y) * silu(z)`: Qwen3-Next.
    NormThenGate,
}

/// Gated root-mean-square norm over contiguous groups of columns, statistics in f32.
pub struct GatedRmsNorm<B: Backend> {
    /// Scan output. `[rows, cols]`
    pub y: Tensor<B>,
    /// Gate, before silu. `[rows, cols]`
    pub z: Tensor<B>,
    /// Gain. `[1, cols] f32`
    pub weight: Tensor<B>,
    /// Number of groups of `cols / groups` columns that are normalised apart.
    pub groups: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Gate before or after the norm.
    pub order: GateOrder,
    /// Output. `[rows, cols]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for GatedRmsNorm<B> {
    const NAME: &'static str = "gated_rms_norm";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.y.shape();
        check::activation(Self::NAME, "y", &self.y, [rows, cols], "rows, cols")?;
        check::activation(Self::NAME, "z", &self.z, [rows, cols], "shape of y")?;
        check::f32(Self::NAME, "weight", &self.weight, [1, cols], "1, cols of y")?;
        check::activation(Self::NAME, "out", &self.out, [rows, cols], "shape of y")?;
        check::ensure(Self::NAME, self.groups > 0 && cols.is_multiple_of(self.groups), || {
            format!("{} groups do not divide {cols} columns", self.groups)
        })
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("y", &self.y, Access::Read),
            Operand::Tensor("z", &self.z, Access::Read),
            Operand::Tensor("weight", &self.weight, Access::Read),
            Operand::Tensor("out", &self.out, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.gated_rms_norm(self)
    }
}

impl GatedRmsNorm<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let mut out = self.y.dense();
        let z = self.z.dense();
        let weight = self.weight.dense();
        for (row, gate) in out.chunks_mut(weight.len()).zip(z.chunks(weight.len())) {
            let apply_gate =
                |row: &mut [f32]| row.iter_mut().zip(gate).for_each(|(v, g)| *v *= silu(*g));
            if self.order == GateOrder::GateThenNorm {
                apply_gate(row);
            }
            normalise(row, self.groups, self.eps);
            row.iter_mut().zip(&weight).for_each(|(v, w)| *v *= w);
            if self.order == GateOrder::NormThenGate {
                apply_gate(row);
            }
        }
        self.out.fill(&out);
    }
}

/// A shape, groups, an order and the size of the numbers.
pub(super) struct GatedRmsNormCase {
    shape: [usize; 2],
    groups: usize,
    order: GateOrder,
    fill: Fill,
}

/// Both orders; tile edges, groups of real models, values whose squares overflow f16, zeros.
pub(super) fn cases() -> Vec<GatedRmsNormCase> {
    let shapes = [
        ([1, 1], 1),
        ([2, 63], 1),
        ([3, 64], 1),
        ([2, 65], 5),
        ([4, 96], 6),
        ([33, 128], 4),
        ([2, 4096], 8),
        ([3, 1536], 1),
    ];
    let mut cases = Vec::new();
    for order in [GateOrder::GateThenNorm, GateOrder::NormThenGate] {
        let case = |shape, groups, fill| GatedRmsNormCase { shape, groups, order, fill };
        cases.extend(shapes.map(|(shape, groups)| case(shape, groups, Fill::Normal(1.0))));
        // Past 100 silu is the identity or zero, and its exponential is past the range of f32.
        cases.push(case([2, 256], 2, Fill::Uniform(-300.0, 300.0)));
        cases.push(case([2, 256], 2, Fill::Constant(0.0)));
    }
    cases
}

impl Case for GatedRmsNormCase {
    fn name(&self) -> String {
        format!("{:?} {:?} groups {} {:?}", self.order, self.shape, self.groups, self.fill)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let [rows, cols] = self.shape;
        rig.step().run(&GatedRmsNorm {
            y: rig.activation("y", rows, cols, self.fill)?,
            z: rig.activation("z", rows, cols, self.fill)?,
            weight: rig.param("weight", 1, cols, Fill::NearOne(0.2))?,
            groups: self.groups,
            eps: 1e-5,
            order: self.order,
            out: rig.output("out", rows, cols, rig.activations(), Tolerance::F32)?,
        })
    }
}
