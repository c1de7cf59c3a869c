//! The router's choice.

use super::line;
use super::moe_up::chooses;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{narrow, optional, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{MoeRoute, RouteRule, Score};

/// Twin of `Rule` in `kernels/moe_route.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Rule {
    score: u32,
    top_k: u32,
    groups: u32,
    top_groups: u32,
    normalise: u32,
    eps: f32,
    scale: f32,
}

/// From this many rows a warp routes a row: fewer instructions, though each row takes longer.
const LANES_FROM: usize = 512;

/// Shared memory that every block may ask for.
const SHARED: usize = 48 << 10;

/// The rule as the kernels read it.
pub(super) fn rule(rule: &RouteRule) -> Rule {
    Rule {
        score: match rule.score {
            Score::Sigmoid => 0,
            Score::SoftmaxBeforeChoice => 1,
            Score::SoftmaxAfterChoice => 2,
        },
        top_k: narrow(rule.top_k),
        groups: narrow(rule.groups),
        top_groups: narrow(rule.top_groups),
        normalise: u32::from(rule.normalise.is_some()),
        eps: rule.normalise.unwrap_or(0.0),
        scale: rule.scale,
    }
}

pub(crate) fn moe_route(cuda: &Cuda, op: &MoeRoute<Cuda>) -> Result<()> {
    let [rows, experts] = op.logits.shape();
    let rule = rule(&op.rule);
    let mut args = Args::new();
    args.push(window(&op.logits)).push(optional(op.bias.as_ref())).push(rule);
    args.push(window(&op.ids)).push(window(&op.weights));
    let chooses = cuda.tuned() && chooses(op);
    let lanes = chooses && rows >= LANES_FROM && on("moe_route_lanes");
    if chooses && !lanes && on("moe_route_ranked") {
        let shape = line(rows, narrow(experts.next_multiple_of(32)));
        return cuda.launch_early("moe_route", "moe_route_ranked", shape, &mut args);
    }
    args.push(narrow(rows));
    if lanes {
        let shape = line(rows.div_ceil(4), 4 * 32);
        return cuda.launch_early("moe_route", "moe_route_lanes", shape, &mut args);
    }
    let warp_bytes = 4 * (2 * experts + op.rule.groups);
    let warps = (SHARED / warp_bytes).clamp(1, 4).min(rows.max(1));
    let shape = Shape {
        shared: narrow(warps * warp_bytes),
        ..line(rows.div_ceil(warps), 32 * narrow(warps))
    };
    cuda.launch_early("moe_route", "moe_route", shape, &mut args)
}
