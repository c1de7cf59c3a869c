//! Gated norm of a Mamba2 mixer: `norm(y * silu(z))` or `norm(y) * silu(z)`, per group.

use super::activate::silu;
use super::check;
use super::rms_norm::normalise;
use crate::backend::Backend;
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
