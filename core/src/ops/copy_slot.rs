//! Copies the state of one slot over another, for snapshots and shared prefixes.

use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

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

/// A state and a copy within it.
pub(super) struct CopySlotCase {
    slots: usize,
    rows_per_slot: usize,
    cols: usize,
    rows: usize,
    from: usize,
    to: usize,
    dtype: DType,
}

/// Whole slots and their first rows, both directions, none, narrow columns, both state dtypes.
pub(super) fn cases() -> Vec<CopySlotCase> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        let shapes = [
            (2, 1, 1, 1, 0, 1),
            (3, 64, 3, 64, 2, 0),
            (4, 40, 128, 40, 1, 3),
            (3, 100, 48, 7, 0, 2),
            (2, 16, 64, 0, 0, 1),
            (3, 1024, 100, 1024, 1, 0),
        ];
        cases.extend(shapes.map(|(slots, rows_per_slot, cols, rows, from, to)| CopySlotCase {
            slots,
            rows_per_slot,
            cols,
            rows,
            from,
            to,
            dtype,
        }));
    }
    cases
}

impl Case for CopySlotCase {
    fn name(&self) -> String {
        let Self { slots, rows_per_slot, cols, rows, from, to, dtype } = self;
        format!("{rows} of {slots} x {rows_per_slot} rows of {cols} {dtype}, {from} to {to}")
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let shape = [self.slots * self.rows_per_slot, self.cols];
        let values = rig.stream("state").values(Fill::Normal(1.0), shape[0] * shape[1]);
        rig.step().run(&CopySlot {
            state: rig.state_of("state", shape, self.dtype, &values, Tolerance::EXACT)?,
            rows_per_slot: self.rows_per_slot,
            rows: self.rows,
            from: self.from,
            to: self.to,
        })
    }
}
