//! The short convolution: one dispatch for short segments, outputs and windows apart for long ones, whose rows a software
//! adapter takes in runs.

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

/// Rows that one invocation of a software adapter walks, most taps that it keeps, and invocations of a workgroup.
const RUN: usize = 8;
const TAPS: usize = 4;
const THREADS: usize = 64;

fn thread_kernel() -> Kernel {
    Kernel::new("causal_conv1d_thread")
}

pub(crate) fn kernels() -> Vec<Kernel> {
    ENTRIES.map(kernel).into_iter().chain([thread_kernel()]).collect()
}

pub(crate) fn encode(gpu: &Wgpu, op: &CausalConv1d<Wgpu>) -> Result<()> {
    want_f32("causal_conv1d", &[&op.x, &op.out])?;
    let segments = &op.segments;
    if segments.shape.longest <= SHORT {
        return part(gpu, op, "step", &segments.table);
    }
    if gpu.variants.barrier_free() && op.weight.cols() <= TAPS {
        by_runs(gpu, op)?;
    } else {
        part(gpu, op, "rows", &segments.places)?;
    }
    part(gpu, op, "window", &segments.table)
}

/// One dispatch over the entries of a table and the channels.
fn part(
    gpu: &Wgpu,
    op: &CausalConv1d<Wgpu>,
    entry: &'static str,
    table: &Tensor<Wgpu>,
) -> Result<()> {
    gpu.dispatch(bind(kernel(entry), op, table), pointwise(table.rows(), op.x.cols()))
}

fn by_runs(gpu: &Wgpu, op: &CausalConv1d<Wgpu>) -> Result<()> {
    let table = &op.segments.table;
    let runs = op.segments.shape.longest.div_ceil(RUN);
    let call = bind(thread_kernel(), op, table).sizes([runs]);
    gpu.dispatch(call, (table.rows() * runs * op.x.cols()).div_ceil(THREADS))
}

/// What all forms are bound to.
fn bind(kernel: Kernel, op: &CausalConv1d<Wgpu>, table: &Tensor<Wgpu>) -> Call {
    let channels = op.x.cols();
    Call::new(kernel)
        .input(&op.x)
        .input(&op.weight)
        .input_or(op.bias.as_ref(), &op.weight)
        .output(&op.state)
        .input(table)
        .output(&op.out)
        .sizes([table.rows(), channels, op.weight.cols(), activation_number(op.activation)])
        .sizes([usize::from(op.bias.is_some())])
}
