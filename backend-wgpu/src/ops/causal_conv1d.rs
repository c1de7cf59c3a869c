//! The short convolution: one dispatch for short segments, outputs and windows apart for long ones.

use super::{activation_number, pointwise};
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::CausalConv1d;
use whipsnake_core::tensor::Tensor;

/// Rows up to which one invocation walks a segment: a second dispatch costs more than a short walk.
const SHORT: usize = 8;

const ENTRIES: [&str; 3] = ["step", "rows", "window"];

fn kernel(entry: &'static str) -> Kernel {
    Kernel::new("causal_conv1d").entry(entry)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    ENTRIES.map(kernel).into()
}

pub(crate) fn encode(gpu: &Wgpu, op: &CausalConv1d<Wgpu>) -> Result<()> {
    want_f32("causal_conv1d", &[&op.x, &op.out])?;
    let segments = &op.segments;
    if segments.shape.longest <= SHORT {
        return part(gpu, op, "step", &segments.table);
    }
    part(gpu, op, "rows", &segments.places)?;
    part(gpu, op, "window", &segments.table)
}

/// One dispatch over the entries of a table and the channels.
fn part(
    gpu: &Wgpu,
    op: &CausalConv1d<Wgpu>,
    entry: &'static str,
    table: &Tensor<Wgpu>,
) -> Result<()> {
    let channels = op.x.cols();
    let call = Call::new(kernel(entry))
        .input(&op.x)
        .input(&op.weight)
        .input_or(op.bias.as_ref(), &op.weight)
        .output(&op.state)
        .input(table)
        .output(&op.out)
        .sizes([table.rows(), channels, op.weight.cols(), activation_number(op.activation)])
        .sizes([usize::from(op.bias.is_some())]);
    gpu.dispatch(call, pointwise(table.rows(), channels))
}
