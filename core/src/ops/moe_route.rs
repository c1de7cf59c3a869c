//! Chooses each row's experts from router logits, in f32.
//!
//! Scores come from the logits; the bias joins them for the choice only. With groups, a group is worth the sum of its
//! two best biased scores and only the best `top_groups` stay. Ties go to the lowest index. Weights are the unbiased
//! scores of the chosen, normalised over them where the rule says so, then scaled once.

use super::activate::sigmoid;
use super::argmax::Logits;
use super::attention::softmax;
use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Score {
    /// Sigmoid of each: Nemotron-H, LFM2-MoE.
    Sigmoid,
    /// Softmax over all experts, then the choice: Jamba, Qwen3-Next.
    SoftmaxBeforeChoice,
    /// The choice by logits, then softmax over the chosen: Granite.
    SoftmaxAfterChoice,
}

/// How experts are chosen and weighted; a property of the family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteRule {
    /// How logits become scores.
    pub score: Score,
    /// Experts a row.
    pub top_k: usize,
    /// Groups of neighbouring experts; 1 for none.
    pub groups: usize,
    /// Groups that stay.
    pub top_groups: usize,
    /// Divide by the sum of the chosen scores plus this; `None` leaves them.
    pub normalise: Option<f32>,
    /// Multiplies the weights, once.
    pub scale: f32,
}

/// The router's choice.
pub struct MoeRoute<B: Backend> {
    /// Router logits. `[rows, experts] f32`
    pub logits: Tensor<B>,
    /// Added to the scores for the choice only. `[1, experts] f32`
    pub bias: Option<Tensor<B>>,
    /// How to choose.
    pub rule: RouteRule,
    /// Chosen experts, best first. `[rows, top_k] u32`
    pub ids: Tensor<B>,
    /// Their weights. `[rows, top_k] f32`
    pub weights: Tensor<B>,
}

impl<B: Backend> Op<B> for MoeRoute<B> {
    const NAME: &'static str = "moe_route";

    fn check(&self) -> Result<()> {
        let [rows, experts] = self.logits.shape();
        let rule = &self.rule;
        check::f32(Self::NAME, "logits", &self.logits, [rows, experts], "rows, experts")?;
        if let Some(bias) = &self.bias {
            check::f32(Self::NAME, "bias", bias, [1, experts], "1, experts")?;
        }
        check::u32(Self::NAME, "ids", &self.ids, [rows, rule.top_k], "rows, top_k")?;
        check::f32(Self::NAME, "weights", &self.weights, [rows, rule.top_k], "rows, top_k")?;
        check::ensure(Self::NAME, rule.groups > 0 && experts.is_multiple_of(rule.groups), || {
            format!("{} groups do not divide {experts} experts", rule.groups)
        })?;
        check::ensure(Self::NAME, (1..=rule.groups).contains(&rule.top_groups), || {
            format!("top_groups is {}, want 1 to {}", rule.top_groups, rule.groups)
        })?;
        let eligible = experts / rule.groups * rule.top_groups;
        check::ensure(Self::NAME, (1..=eligible).contains(&rule.top_k), || {
            format!(
                "top_k is {}, want 1 to {eligible} (experts of the groups that stay)",
                rule.top_k
            )
        })
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        let mut list = vec![Operand::Tensor("logits", &self.logits, Access::Read)];
        list.extend(self.bias.iter().map(|b| Operand::Tensor("bias", b, Access::Read)));
        list.push(Operand::Tensor("ids", &self.ids, Access::Write));
        list.push(Operand::Tensor("weights", &self.weights, Access::Write));
        list
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.moe_route(self)
    }
}

impl MoeRoute<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let experts = self.logits.cols();
        let bias = self.bias.as_ref().map(Tensor::dense);
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for logits in self.logits.dense().chunks(experts) {
            let (row_ids, row_weights) = route(logits, bias.as_deref(), &self.rule);
            ids.extend(row_ids);
            weights.extend(row_weights);
        }
        self.ids.fill_u32(&ids);
        self.weights.fill(&weights);
    }
}

/// The experts and weights of one row.
fn route(logits: &[f32], bias: Option<&[f32]>, rule: &RouteRule) -> (Vec<u32>, Vec<f32>) {
    let scores: Vec<f32> = match rule.score {
        Score::Sigmoid => logits.iter().map(|&l| sigmoid(l)).collect(),
        Score::SoftmaxBeforeChoice => softmax(logits),
        Score::SoftmaxAfterChoice => logits.to_vec(),
    };
    let mut choice: Vec<f32> =
        scores.iter().enumerate().map(|(e, s)| s + bias.map_or(0.0, |b| b[e])).collect();
    drop_groups(&mut choice, rule);
    let chosen = best(&choice, rule.top_k);
    let mut weights: Vec<f32> = chosen.iter().map(|&e| scores[e]).collect();
    if rule.score == Score::SoftmaxAfterChoice {
        weights = softmax(&weights);
    }
    if let Some(eps) = rule.normalise {
        let sum = weights.iter().sum::<f32>() + eps;
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= rule.scale);
    // An expert's index is below 2^32: the logits of one row are in memory.
    (chosen.iter().map(|&e| e as u32).collect(), weights)
}

/// Sets the scores of the groups that do not stay to minus infinity.
fn drop_groups(choice: &mut [f32], rule: &RouteRule) {
    let width = choice.len() / rule.groups;
    let worth: Vec<f32> = choice
        .chunks(width)
        .map(|group| best(group, 2.min(width)).iter().map(|&e| group[e]).sum())
        .collect();
    let stay = best(&worth, rule.top_groups);
    for (index, group) in choice.chunks_mut(width).enumerate() {
        if !stay.contains(&index) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Indices of the `count` largest values, largest first, ties to the lowest index.
pub(super) fn best(values: &[f32], count: usize) -> Vec<usize> {
    let falling = |a: &usize, b: &usize| values[*b].total_cmp(&values[*a]).then(a.cmp(b));
    let mut order: Vec<usize> = (0..values.len()).collect();
    if count < order.len() {
        order.select_nth_unstable_by(count, falling);
        order.truncate(count);
    }
    order.sort_unstable_by(falling);
    order
}

/// A rule and the logits it meets.
pub(super) struct MoeRouteCase {
    shape: [usize; 2],
    rule: RouteRule,
    bias: Option<Fill>,
    logits: Logits,
}

/// Every score with and without normalisation, groups, a bias that changes the choice, ties, sizes of real models.
pub(super) fn cases() -> Vec<MoeRouteCase> {
    let mut cases = Vec::new();
    for score in [Score::Sigmoid, Score::SoftmaxBeforeChoice, Score::SoftmaxAfterChoice] {
        let plain =
            RouteRule { score, top_k: 2, groups: 1, top_groups: 1, normalise: None, scale: 1.0 };
        let scaled = |top_k| RouteRule { top_k, normalise: Some(1e-20), scale: 2.5, ..plain };
        let case = |shape, rule| MoeRouteCase { shape, rule, bias: None, logits: Logits::Normal };
        cases.push(case([1, 1], RouteRule { top_k: 1, ..plain }));
        cases.push(case([3, 2], plain));
        cases.push(case([65, 16], plain));
        cases.push(case([5, 63], RouteRule { top_k: 8, ..plain }));
        cases.push(case([33, 128], scaled(6)));
        cases.push(case([9, 512], scaled(22)));
        let grouped = RouteRule { groups: 8, top_groups: 3, ..scaled(6) };
        cases.push(case([17, 64], grouped));
        cases.push(case([4, 8], RouteRule { top_k: 2, ..grouped }));
        cases.push(MoeRouteCase { bias: Some(Fill::Normal(0.5)), ..case([17, 64], grouped) });
        cases.push(MoeRouteCase { bias: Some(Fill::Normal(2.0)), ..case([33, 128], scaled(6)) });
        for logits in [Logits::Ties, Logits::All(0.5), Logits::LastColumn] {
            cases.push(MoeRouteCase { logits, ..case([5, 64], scaled(6)) });
            cases.push(MoeRouteCase { logits, ..case([5, 64], grouped) });
        }
        // Many rows, which a back end may route in another way.
        let bias = Some(Fill::Normal(0.5));
        cases.push(MoeRouteCase { bias, ..case([517, 128], scaled(6)) });
        cases.push(MoeRouteCase { logits: Logits::Ties, ..case([512, 200], scaled(5)) });
        // Far from zero a softmax that does not take the largest away overflows.
        cases.push(MoeRouteCase { logits: Logits::All(200.0), ..case([2, 32], plain) });
    }
    cases
}

impl Case for MoeRouteCase {
    fn name(&self) -> String {
        let Self { shape, rule, bias, logits } = self;
        let bias = if bias.is_some() { "biased " } else { "" };
        let groups = format!("{} of {} groups", rule.top_groups, rule.groups);
        format!("{bias}{:?} {} of {shape:?}, {groups}, {logits:?}", rule.score, rule.top_k)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let ([rows, experts], top_k) = (self.shape, self.rule.top_k);
        let logits = self.logits.draw(rig, self.shape);
        rig.step().run(&MoeRoute {
            logits: rig.input_of("logits", self.shape, DType::F32, &logits)?,
            bias: self.bias.map(|fill| rig.param("bias", 1, experts, fill)).transpose()?,
            rule: self.rule,
            ids: rig.output_u32("ids", rows, top_k)?,
            weights: rig.output("weights", rows, top_k, DType::F32, Tolerance::F32)?,
        })
    }
}
