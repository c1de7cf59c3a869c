//! The router's choice: a workgroup a row, or an invocation without barriers.

use crate::Wgpu;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::{MoeRoute, Score};

/// Experts that the kernel's workgroup memory holds.
const MOST_EXPERTS: usize = 1024;

/// Rows of a workgroup of the form without barriers, which knows no groups of experts.
const BLOCK: usize = 8;

/// The number of a score in the shaders.
pub(super) const fn score_number(score: Score) -> u32 {
    match score {
        Score::Sigmoid => 0,
        Score::SoftmaxBeforeChoice => 1,
        Score::SoftmaxAfterChoice => 2,
    }
}

fn kernel(shader: &'static str, score: Score) -> Kernel {
    Kernel::new(shader).with("SCORE", score_number(score))
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let scores = [Score::Sigmoid, Score::SoftmaxBeforeChoice, Score::SoftmaxAfterChoice];
    let kernels = |shader| scores.map(|score| kernel(shader, score));
    ["moe_route", "moe_route_thread"].into_iter().flat_map(kernels).collect()
}

pub(crate) fn encode(gpu: &Wgpu, op: &MoeRoute<Wgpu>) -> Result<()> {
    let [rows, experts] = op.logits.shape();
    if experts > MOST_EXPERTS {
        return Err(Error::op(
            "moe_route",
            format!("the wgpu back end routes to at most {MOST_EXPERTS} experts, found {experts}"),
        ));
    }
    let rule = &op.rule;
    let (shader, workgroups) = match gpu.variants.barrier_free() && rule.top_groups == rule.groups {
        true => ("moe_route_thread", rows.div_ceil(BLOCK)),
        false => ("moe_route", rows),
    };
    let call = Call::new(kernel(shader, rule.score))
        .input(&op.logits)
        .input_or(op.bias.as_ref(), &op.logits)
        .output(&op.ids)
        .output(&op.weights)
        .sizes([rows, experts, rule.top_k, rule.groups, rule.top_groups])
        .sizes([usize::from(op.bias.is_some()), usize::from(rule.normalise.is_some())])
        .floats([rule.normalise.unwrap_or(0.0), rule.scale]);
    gpu.dispatch(call, workgroups)
}
