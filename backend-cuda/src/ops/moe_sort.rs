//! The router's choice and its pairs by expert, as one launch for some rows.

use super::line;
use super::moe_route::rule;
use super::moe_up::chooses;
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{narrow, optional, pointer, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::MoeSort;
use whipsnake_core::step::Step;

/// Pairs that one block sorts: `MOST` of `kernels/moe_sort.cu`.
const MOST: usize = 512;

pub(crate) fn moe_sort(cuda: &Cuda, _step: &Step<'_, Cuda>, op: &MoeSort<Cuda>) -> Result<bool> {
    let (route, groups) = (&op.route, &op.group.groups);
    let [rows, experts] = route.logits.shape();
    if !cuda.tuned() || !chooses(route) || rows * route.rule.top_k > MOST || !on("moe_sort") {
        return Ok(false);
    }
    let mut args = Args::new();
    args.push(window(&route.logits))
        .push(optional(route.bias.as_ref()))
        .push(rule(&route.rule))
        .push(window(&route.ids))
        .push(window(&route.weights))
        .push(pointer(&groups.order))
        .push(pointer(&groups.offsets));
    let shape = line(rows, narrow(experts.next_multiple_of(32)));
    cuda.launch_early("moe_sort", "moe_sort", shape, &mut args).map(|()| true)
}
