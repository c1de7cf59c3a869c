//! The experts' second product; its weighted sum goes into the target with the shared expert's second product where rows
//! are few.

use super::matmul::{by_output, unit_of};
use crate::Wgpu;
use crate::call::want_f32;
use whipsnake_core::error::Result;
use whipsnake_core::ops::MoeDown;
use whipsnake_core::step::{FusedOp, Step};

pub(crate) fn encode(step: &Step<'_, Wgpu>, op: &MoeDown<'_, Wgpu>) -> Result<()> {
    let gpu = step.backend();
    let fused = !gpu.variants.barrier_free();
    let shared = op.shared.as_ref().filter(|shared| fused && shared.store == op.combine.store);
    let taken = shared.and_then(|s| unit_of(&s.x, s.weight.format).map(|unit| (s, unit)));
    let Some((shared, unit)) = taken else { return op.unfused(step) };
    step.run(&op.down)?;
    want_f32("moe_down", &[&shared.x, &shared.out, &op.combine.x])?;
    by_output(gpu, shared, shared.x.cols() / unit, Some(&op.combine))
}
