//! Fused: the router's choice, then the chosen pairs by expert.

use super::argmax::Logits;
use super::check;
use super::moe_group::{ExpertGroups, MoeGroup};
use super::moe_route::{MoeRoute, RouteRule, Score};
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::error::Result;
use crate::step::{FusedOp, Op, Step};
use crate::tensor::DType;

/// What many rows need to know before their experts run.
pub struct MoeSort<B: Backend> {
    /// The choice.
    pub route: MoeRoute<B>,
    /// Reads what was chosen.
    pub group: MoeGroup<B>,
}

impl<B: Backend> FusedOp<B> for MoeSort<B> {
    const NAME: &'static str = "moe_sort";

    fn check(&self) -> Result<()> {
        self.route.check()?;
        self.group.check()?;
        let same = B::same(self.route.ids.buffer(), self.group.ids.buffer());
        check::ensure(Self::NAME, same, || "other ids are sorted than the chosen".into())
    }

    fn unfused(&self, step: &Step<'_, B>) -> Result<()> {
        step.run(&self.route)?;
        step.run(&self.group)
    }

    fn encode(&self, step: &Step<'_, B>) -> Result<()> {
        step.backend().moe_sort(step, self)
    }
}

/// A choice.
pub(super) struct MoeSortCase {
    rows: usize,
    experts: usize,
    rule: RouteRule,
    logits: Logits,
}

/// Every rule; ties; one row, fewer pairs than experts and more, and more than one block sorts.
pub(super) fn cases() -> Vec<MoeSortCase> {
    let mut cases = Vec::new();
    for score in [Score::Sigmoid, Score::SoftmaxBeforeChoice, Score::SoftmaxAfterChoice] {
        let rule = RouteRule {
            score,
            top_k: 6,
            groups: 1,
            top_groups: 1,
            normalise: Some(1e-20),
            scale: 2.5,
        };
        let case = |rows, experts| MoeSortCase { rows, experts, rule, logits: Logits::Normal };
        cases.extend([(1, 6), (8, 128), (32, 128), (33, 33), (65, 256)].map(|(r, e)| case(r, e)));
        cases.push(case(100, 24));
        cases.push(MoeSortCase { logits: Logits::Ties, ..case(9, 16) });
        let grouped = RouteRule { groups: 4, top_groups: 2, ..rule };
        cases.push(MoeSortCase { rule: grouped, ..case(5, 16) });
    }
    cases
}

impl Case for MoeSortCase {
    fn name(&self) -> String {
        let Self { rows, experts, rule: RouteRule { score, top_k, groups, .. }, logits } = self;
        format!("{score:?} {top_k} of [{rows}, {experts}] in {groups} {logits:?}")
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let (rows, experts, top_k) = (self.rows, self.experts, self.rule.top_k);
        let logits = self.logits.draw(rig, [rows, experts]);
        let ids = rig.output_u32("ids", rows, top_k)?;
        let route = MoeRoute {
            logits: rig.input_of("logits", [rows, experts], DType::F32, &logits)?,
            bias: Some(rig.param("bias", 1, experts, Fill::Normal(0.5))?),
            rule: self.rule,
            ids: ids.clone(),
            weights: rig.output("weights", rows, top_k, DType::F32, Tolerance::F32)?,
        };
        let groups = ExpertGroups {
            order: rig.output_u32("groups.order", rows * top_k, 1)?,
            offsets: rig.output_u32("groups.offsets", experts + 1, 1)?,
        };
        rig.step().fused(&MoeSort { route, group: MoeGroup { ids, experts, groups } })
    }
}
