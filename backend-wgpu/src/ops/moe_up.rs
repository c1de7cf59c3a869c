//! The router's choice with the chosen experts' first product: one dispatch where rows are few and teams are subgroups.

use super::matmul::few_row_kernels;
use super::moe_matmul::{SHADER, by_output, units};
use super::moe_route::score_number;
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::{MoeRoute, MoeUp, Score};
use whipsnake_core::step::{FusedOp, Step};
use whipsnake_core::weight::Format;

/// Storage buffers of the kernel with a choice.
const WITH_CHOICE: u32 = 9;
/// Experts that a lane ranks, at most.
const PER_LANE: usize = 8;

/// A choice that workgroups of the product make for themselves.
pub(super) struct Choice<'o> {
    route: &'o MoeRoute<Wgpu>,
    /// Experts that a lane ranks.
    per_lane: usize,
}

impl<'o> Choice<'o> {
    /// Where the device's subgroups can make it.
    fn of(gpu: &Wgpu, route: &'o MoeRoute<Wgpu>) -> Option<Self> {
        let lanes = gpu.variants.lanes()?;
        let per_lane = route.logits.cols().div_ceil(lanes);
        let rule = &route.rule;
        let plain = rule.top_groups == rule.groups && rule.top_k <= lanes && per_lane <= PER_LANE;
        let buffers = gpu.limits.max_storage_buffers_per_shader_stage;
        (plain && buffers >= WITH_CHOICE).then_some(Self { route, per_lane })
    }

    /// Gives a kernel its constants.
    pub fn kernel(&self, kernel: Kernel) -> Kernel {
        with_choice(kernel, self.route.rule.score, self.per_lane)
    }

    /// Binds what the choice reads and leaves beside the ids.
    pub fn bind(&self, call: Call) -> Call {
        let MoeRoute { logits, bias, weights, .. } = self.route;
        call.input(logits).input_or(bias.as_ref(), logits).output(weights)
    }

    /// Experts, whether there is a bias, whether weights are normalised.
    pub fn sizes(&self) -> [usize; 3] {
        let MoeRoute { logits, bias, rule, .. } = self.route;
        [logits.cols(), usize::from(bias.is_some()), usize::from(rule.normalise.is_some())]
    }

    /// What keeps the norm finite, and the factor.
    pub fn floats(&self) -> [f32; 2] {
        [self.route.rule.normalise.unwrap_or(0.0), self.route.rule.scale]
    }
}

fn with_choice(kernel: Kernel, score: Score, per_lane: usize) -> Kernel {
    // At most `PER_LANE`.
    kernel.with("CHOICE", score_number(score)).with("PER", per_lane as u32)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let scores = [Score::Sigmoid, Score::SoftmaxBeforeChoice, Score::SoftmaxAfterChoice];
    let kernels = few_row_kernels(SHADER, Format::Nvfp4, &[1]);
    let kernels = kernels.into_iter().filter(|kernel| kernel.entry_point() == "subgroup");
    kernels.flat_map(|kernel| scores.map(|score| with_choice(kernel.clone(), score, 4))).collect()
}

pub(crate) fn encode(step: &Step<'_, Wgpu>, op: &MoeUp<'_, Wgpu>) -> Result<()> {
    let (gpu, up) = (step.backend(), &op.up);
    let few = units(up).filter(|_| up.groups.is_none() && up.weight.experts > 1);
    let (Some(units), Some(choice)) = (few, Choice::of(gpu, &op.route)) else {
        return op.unfused(step);
    };
    want_f32("moe_up", &[&up.x, &op.route.logits, &up.out])?;
    gpu.pieces(up.weight)
        .iter()
        .try_for_each(|piece| by_output(gpu, up, piece, units, Some(&choice)))
}
