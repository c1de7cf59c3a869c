//! Copies the state of one slot over another, for snapshots and shared prefixes.

use super::check;
use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// `state[to] = state[from]`, where slot `s` is the rows `s * rows_per_slot..`.
pub struct CopySlot<B: Backend> {
    /// State of all slots, in place. `[slots * rows_per_slot, cols]`
    pub state: Tensor<B>,
    /// Rows of one slot.
    pub rows_per_slot: usize,
    /// Rows to copy from the start of the slot: all for recurrent state, the tokens so far for keys and values.
    pub rows: usize,
    /// Source slot.
    pub from: usize,
    /// Target slot, another one.
    pub to: usize,
}

impl<B: Backend> Op<B> for CopySlot<B> {
    const NAME: &'static str = "copy_slot";

    fn check(&self) -> Result<()> {
        let per_slot = self.rows_per_slot;
        check::ensure(
            Self::NAME,
            per_slot > 0 && self.state.rows().is_multiple_of(per_slot),
            || format!("{per_slot} rows a slot do not divide {} rows", self.state.rows()),
        )?;
        check::ensure(Self::NAME, self.rows <= per_slot, || {
            format!("rows is {}, want at most {per_slot} (rows of a slot)", self.rows)
        })?;
        let slots = self.state.rows() / per_slot;
        for (name, slot) in [("from", self.from), ("to", self.to)] {
            check::ensure(Self::NAME, slot < slots, || {
                format!("{name} is slot {slot}, want below {slots}")
            })?;
        }
        check::ensure(Self::NAME, self.from != self.to, || {
            format!("from and to are both slot {}", self.to)
        })
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![Operand::Tensor("state", &self.state, Access::Update)]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.copy_slot(self)
    }
}

impl CopySlot<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let slot = |s: usize| self.state.row_range(s * self.rows_per_slot, self.rows);
        let rows = slot(self.from).dense();
        slot(self.to).fill(&rows);
    }
}
