//! Sorts the chosen (row, choice) pairs by expert, so that many rows run as one product an expert.
//!
//! `order` lists the pair indices `row * top_k + choice` by expert, in rising order within one; the pairs of expert `e`
//! are `order[offsets[e]..offsets[e + 1]]`.

use super::check;
use crate::backend::Backend;
use crate::batch::to_usize;
use crate::conformance::{Case, Rig, Stream};
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
        let (order, offsets) = by_expert(&self.ids.dense_u32(), self.experts);
        self.groups.order.fill_u32(&order);
        self.groups.offsets.fill_u32(&offsets);
    }
}

/// `order` and `offsets` of the pairs whose experts are `ids`.
pub(crate) fn by_expert(ids: &[u32], experts: usize) -> (Vec<u32>, Vec<u32>) {
    let mut offsets = vec![0u32; experts + 1];
    for &id in ids {
        offsets[to_usize(id) + 1] += 1;
    }
    for e in 0..experts {
        offsets[e + 1] += offsets[e];
    }
    let mut next = offsets.clone();
    let mut order = vec![0u32; ids.len()];
    for (pair, &id) in (0u32..).zip(ids) {
        let place = &mut next[to_usize(id)];
        order[to_usize(*place)] = pair;
        *place += 1;
    }
    (order, offsets)
}

/// Tables of these choices by expert, for cases of ops that read them.
pub(super) fn sorted<B: Backend>(
    rig: &Rig<'_, B>,
    ids: &[u32],
    experts: usize,
) -> Result<ExpertGroups<B>> {
    let (order, offsets) = by_expert(ids, experts);
    Ok(ExpertGroups {
        order: rig.table("groups.order", order.len(), 1, &order)?,
        offsets: rig.table("groups.offsets", offsets.len(), 1, &offsets)?,
    })
}

/// Choices of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choices {
    /// Distinct experts in each row.
    Spread,
    /// Every pair chooses this expert.
    One(u32),
}

impl Choices {
    /// `[rows, top_k]` choices among `experts`.
    pub(super) fn draw(self, stream: &mut Stream, shape: [usize; 2], experts: u32) -> Vec<u32> {
        let [rows, top_k] = shape;
        if let Self::One(expert) = self {
            return vec![expert; rows * top_k];
        }
        let mut list: Vec<u32> = (0..experts).collect();
        let mut row = |_| {
            for i in 0..top_k {
                let rest = experts - u32::try_from(i).unwrap_or(0);
                list.swap(i, i + to_usize(stream.below(rest)));
            }
            list[..top_k].to_vec()
        };
        (0..rows).flat_map(&mut row).collect()
    }
}

/// A shape of choices.
pub(super) struct MoeGroupCase {
    shape: [usize; 2],
    experts: u32,
    choices: Choices,
}

/// Fewer pairs than experts and far more, experts with none, one with all, sizes of real models.
pub(super) fn cases() -> Vec<MoeGroupCase> {
    let case = |shape, experts, choices| MoeGroupCase { shape, experts, choices };
    let mut cases: Vec<_> = [
        ([1, 1], 1),
        ([1, 2], 8),
        ([7, 3], 5),
        ([64, 2], 16),
        ([33, 6], 128),
        ([300, 6], 128),
        ([5, 22], 512),
        ([129, 22], 512),
        ([900, 6], 128),
    ]
    .map(|(shape, experts)| case(shape, experts, Choices::Spread))
    .into();
    cases.extend([0, 4, 127].map(|expert| case([65, 1], 128, Choices::One(expert))));
    cases
}

impl Case for MoeGroupCase {
    fn name(&self) -> String {
        format!("{:?} of {} experts, {:?}", self.shape, self.experts, self.choices)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let ([rows, top_k], experts) = (self.shape, to_usize(self.experts));
        let ids = self.choices.draw(&mut rig.stream("ids"), self.shape, self.experts);
        rig.step().run(&MoeGroup {
            ids: rig.table("ids", rows, top_k, &ids)?,
            experts,
            groups: ExpertGroups {
                order: rig.output_u32("groups.order", rows * top_k, 1)?,
                offsets: rig.output_u32("groups.offsets", experts + 1, 1)?,
            },
        })
    }
}
