//! The router's choice and the chosen experts' first product, as one launch for few rows.

use super::common_vec::{Deal, THREADS, stored_columns};
use super::moe_route::{Rule, rule};
use super::{GRID_Y, common_phases, function, one};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::{Bank, Window, bank, narrow, optional, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{ExpertInput, MoeRoute, MoeUp, Score};
use whipsnake_core::step::Step;

/// Experts that a choice is made of, and choices that one warp writes: `MOST` and `MOST_CHOICES` of programs too.
const MOST_EXPERTS: usize = 256;
const MOST_CHOICES: usize = 32;

/// Twin of `MoeUp` in `kernels/moe_up.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Arguments {
    logits: Window,
    bias: u64,
    ids: Window,
    weights: Window,
    x: Window,
    weight: Bank,
    out: Window,
    rule: Rule,
    function: u32,
    groups: u32,
    splits: u32,
}

/// Whether a kernel that runs experts can make the choice too.
pub(super) fn chooses(route: &MoeRoute<Cuda>) -> bool {
    route.rule.score != Score::SoftmaxBeforeChoice
        && route.rule.groups == 1
        && route.logits.cols() <= MOST_EXPERTS
        && route.rule.top_k <= MOST_CHOICES
}

pub(crate) fn moe_up(cuda: &Cuda, _step: &Step<'_, Cuda>, op: &MoeUp<'_, Cuda>) -> Result<bool> {
    let (route, up) = (&op.route, &op.up);
    if common_phases::moe_up(cuda, op) {
        return Ok(true);
    }
    let pairs = up.out.rows();
    let fits =
        chooses(route) && up.groups.is_none() && up.input == ExpertInput::Row && pairs <= GRID_Y;
    let deal = stored_columns(cuda, &up.x, up.weight)
        .and_then(|columns| Deal::new(cuda, 1, [up.weight.rows, up.weight.cols], columns));
    let (Some(deal), true) = (deal, fits) else { return Ok(false) };
    let arguments = Arguments {
        logits: window(&route.logits),
        bias: optional(route.bias.as_ref()),
        ids: window(&route.ids),
        weights: window(&route.weights),
        x: window(&up.x),
        weight: bank(up.weight),
        out: window(&up.out),
        rule: rule(&route.rule),
        function: function(up.activation),
        groups: deal.groups,
        splits: deal.splits,
    };
    let pairs = narrow(pairs);
    let blocks = deal.resident.div_ceil(pairs.max(1)).min(deal.groups);
    let shape = Shape { grid: [blocks, pairs, 1], threads: THREADS, shared: deal.shared };
    cuda.launch_early("moe_up", "moe_up", shape, &mut one(arguments))?;
    Ok(true)
}
