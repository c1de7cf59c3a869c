//! The router's choice: a workgroup a row.

use crate::Wgpu;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::{MoeRoute, Score};

/// Experts that the kernel's workgroup memory holds.
const MOST_EXPERTS: usize = 1024;

fn kernel(score: Score) -> Kernel {
    let number = match score {
        Score::Sigmoid => 0,
        Score::SoftmaxBeforeChoice => 1,
        Score::SoftmaxAfterChoice => 2,
    };
    Kernel::new("moe_route").with("SCORE", number)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    [Score::Sigmoid, Score::SoftmaxBeforeChoice, Score::SoftmaxAfterChoice].map(kernel).into()
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
    let call = Call::new(kernel(rule.score))
        .input(&op.logits)
        .input_or(op.bias.as_ref(), &op.logits)
        .output(&op.ids)
        .output(&op.weights)
        .sizes([rows, experts, rule.top_k, rule.groups, rule.top_groups])
        .sizes([usize::from(op.bias.is_some()), usize::from(rule.normalise.is_some())])
        .floats([rule.normalise.unwrap_or(0.0), rule.scale]);
    gpu.dispatch(call, rows)
}
