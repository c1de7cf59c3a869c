//! Fused: the router's choice, then the chosen experts' first product.

use super::activate::Activation;
use super::argmax::Logits;
use super::check;
use super::moe_matmul::{ExpertInput, MoeMatmul};
use super::moe_route::{MoeRoute, RouteRule, Score};
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::error::Result;
use crate::step::{FusedOp, Op, Step};
use crate::tensor::DType;
use crate::weight::Format;

/// The first half of the routed experts.
pub struct MoeUp<'a, B: Backend> {
    /// The choice.
    pub route: MoeRoute<B>,
    /// Reads what was chosen.
    pub up: MoeMatmul<'a, B>,
}

impl<B: Backend> FusedOp<B> for MoeUp<'_, B> {
    const NAME: &'static str = "moe_up";

    fn check(&self) -> Result<()> {
        self.route.check()?;
        self.up.check()?;
        let same = B::same(self.route.ids.buffer(), self.up.ids.buffer());
        check::ensure(Self::NAME, same, || "the product reads other ids than the chosen".into())
    }

    fn unfused(&self, step: &Step<'_, B>) -> Result<()> {
        step.run(&self.route)?;
        step.run(&self.up)
    }

    fn encode(&self, step: &Step<'_, B>) -> Result<()> {
        step.backend().moe_up(step, self)
    }
}

/// A choice and a bank.
pub(super) struct MoeUpCase {
    rows: usize,
    experts: usize,
    rule: RouteRule,
    bias: bool,
    logits: Logits,
    /// Outputs, inputs.
    sizes: [usize; 2],
    format: Format,
}

/// Every rule and format; ties; one row and several; a real model's shape.
pub(super) fn cases() -> Vec<MoeUpCase> {
    let mut cases = Vec::new();
    for score in [Score::Sigmoid, Score::SoftmaxBeforeChoice, Score::SoftmaxAfterChoice] {
        let rule =
            RouteRule { score, top_k: 3, groups: 1, top_groups: 1, normalise: None, scale: 1.0 };
        let scaled = RouteRule { top_k: 6, normalise: Some(1e-20), scale: 2.5, ..rule };
        let case = |rows, experts, rule, format| MoeUpCase {
            rows,
            experts,
            rule,
            bias: true,
            logits: Logits::Normal,
            sizes: [41, 192],
            format,
        };
        cases.extend(Format::ALL.map(|format| case(2, 9, rule, format)));
        cases.extend([1, 4, 9].map(|rows| case(rows, 24, scaled, Format::Nvfp4)));
        cases.push(MoeUpCase { bias: false, ..case(3, 17, rule, Format::Nvfp4) });
        cases.push(MoeUpCase {
            logits: Logits::Ties,
            bias: false,
            ..case(3, 16, scaled, Format::BF16)
        });
        let grouped = RouteRule { groups: 4, top_groups: 2, ..scaled };
        cases.push(case(2, 16, grouped, Format::Nvfp4));
        cases.push(MoeUpCase { sizes: [72, 2688], ..case(1, 128, scaled, Format::Nvfp4) });
        cases.push(MoeUpCase { sizes: [8, 64], ..case(1, 520, scaled, Format::Nvfp4) });
    }
    cases
}

impl Case for MoeUpCase {
    fn name(&self) -> String {
        let Self { rows, experts, rule, bias, logits, sizes, format } = self;
        let bias = if *bias { "biased " } else { "" };
        let RouteRule { score, top_k, groups, .. } = rule;
        format!(
            "{bias}{score:?} {top_k} of [{rows}, {experts}] in {groups} {logits:?}, {sizes:?} {format}"
        )
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let (rows, experts, top_k) = (self.rows, self.experts, self.rule.top_k);
        let ([outputs, inputs], dtype) = (self.sizes, rig.activations());
        let logits = self.logits.draw(rig, [rows, experts]);
        let ids = rig.output_u32("ids", rows, top_k)?;
        let route = MoeRoute {
            logits: rig.input_of("logits", [rows, experts], DType::F32, &logits)?,
            bias: self
                .bias
                .then(|| rig.param("bias", 1, experts, Fill::Normal(0.5)))
                .transpose()?,
            rule: self.rule,
            ids: ids.clone(),
            weights: rig.output("weights", rows, top_k, DType::F32, Tolerance::F32)?,
        };
        let up = MoeMatmul {
            x: rig.activation("x", rows, inputs, Fill::Normal(1.0))?,
            input: ExpertInput::Row,
            weight: &rig.weight("weight", experts, outputs, inputs, self.format)?,
            ids,
            groups: None,
            activation: Activation::Relu2,
            // As in moe_matmul.
            out: rig.output("out", rows * top_k, outputs, dtype, Tolerance::F32.scaled(5.0))?,
        };
        rig.step().fused(&MoeUp { route, up })
    }
}
