//! Sorts the chosen (row, choice) pairs by expert, so that many rows run as one product an expert.
//!
//! `order` lists the pair indices `row * top_k + choice` by expert, in rising order within one; the pairs of expert `e`
//! are `order[offsets[e]..offsets[e + 1]]`.

use super::check;
use crate::backend::Backend;
use crate::batch::to_usize;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// The pairs of a step by expert.
pub struct ExpertGroups<B: Backend> {
    /// Pair indices by expert. `[rows * top_k, 1] u32`
    pub order: Tensor<B>,
    /// First entry of each expert, and the end. `[experts + 1, 1] u32`
    pub offsets: Tensor<B>,
}

impl<B: Backend> Clone for ExpertGroups<B> {
    fn clone(&self) -> Self {
        Self { order: self.order.clone(), offsets: self.offsets.clone() }
    }
}

impl<B: Backend> ExpertGroups<B> {
    pub(super) fn check(&self, op: &str, pairs: usize, experts: usize) -> Result<()> {
        check::u32(op, "groups.order", &self.order, [pairs, 1], "rows * top_k, 1")?;
        check::u32(op, "groups.offsets", &self.offsets, [experts + 1, 1], "experts + 1, 1")
    }
}

/// A stable counting sort of the router's choices.
pub struct MoeGroup<B: Backend> {
    /// Chosen experts. `[rows, top_k] u32`
    pub ids: Tensor<B>,
    /// Number of experts.
    pub experts: usize,
    /// The pairs by expert.
    pub groups: ExpertGroups<B>,
}

impl<B: Backend> Op<B> for MoeGroup<B> {
    const NAME: &'static str = "moe_group";

    fn check(&self) -> Result<()> {
        let [rows, top_k] = self.ids.shape();
        check::u32(Self::NAME, "ids", &self.ids, [rows, top_k], "rows, top_k")?;
        self.groups.check(Self::NAME, rows * top_k, self.experts)
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("ids", &self.ids, Access::Read),
            Operand::Tensor("groups.order", &self.groups.order, Access::Write),
            Operand::Tensor("groups.offsets", &self.groups.offsets, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.moe_group(self)
    }
}

impl MoeGroup<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let ids = self.ids.dense_u32();
        let mut offsets = vec![0u32; self.experts + 1];
        for &id in &ids {
            offsets[to_usize(id) + 1] += 1;
        }
        for e in 0..self.experts {
            offsets[e + 1] += offsets[e];
        }
        let mut next = offsets.clone();
        let mut order = vec![0u32; ids.len()];
        for (pair, &id) in (0u32..).zip(&ids) {
            let place = &mut next[to_usize(id)];
            order[to_usize(*place)] = pair;
            *place += 1;
        }
        self.groups.order.fill_u32(&order);
        self.groups.offsets.fill_u32(&offsets);
    }
}
