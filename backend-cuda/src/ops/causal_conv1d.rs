//! The short convolution: one launch for short segments, rows in parallel and then the state for long ones.

use super::{function, one, one_dtype};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::{Window, narrow, optional, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::CausalConv1d;
use whipsnake_core::tensor::{DType, Tensor};

/// Twin of `Conv` in `kernels/causal_conv1d.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Conv {
    x: Window,
    weight: u64,
    bias: u64,
    function: u32,
    width: u32,
    rows: u32,
    run: u32,
    state: Window,
    table: u64,
    places: u64,
    out: Window,
}

const THREADS: u32 = 128;

/// Most rows of a thread in the long form, and fewest: a window costs as much as some rows do.
const MOST_ROWS: u32 = 32;
const FEWEST_ROWS: u32 = 8;

/// Segments up to this long are walked by one thread a channel.
const SHORT: usize = 16;

pub(crate) fn causal_conv1d(cuda: &Cuda, op: &CausalConv1d<Cuda>) -> Result<()> {
    let dtype = one_dtype("causal_conv1d", &[&op.x, &op.out])?;
    let width = narrow(op.weight.cols());
    let room = if width <= 4 { 4 } else { 8 };
    let conv = Conv {
        x: window(&op.x),
        weight: pointer(&op.weight),
        bias: optional(op.bias.as_ref()),
        function: function(op.activation),
        width,
        rows: narrow(op.x.rows()),
        run: 0,
        state: window(&op.state),
        table: pointer(&op.segments.table),
        places: pointer(&op.segments.places),
        out: window(&op.out),
    };
    let run = |form: &str, conv: Conv, across: u32, down: u32| {
        let grid = [across.div_ceil(THREADS), down, 1];
        let name = format!("causal_conv1d_{form}");
        let shape = Shape { grid, threads: THREADS, shared: 0 };
        cuda.launch_early("causal_conv1d", &name, shape, &mut one(conv))
    };
    let (channels, segments) = (conv.x.cols, narrow(op.segments.shape.segments));
    if op.segments.shape.longest <= SHORT {
        return run(&format!("short_{dtype}_{room}"), conv, channels, segments);
    }
    let pairs = [&op.x, &op.out].into_iter().all(whole_pairs);
    let each = if pairs { 2 } else { 1 };
    let across = channels.div_ceil(each);
    // Enough blocks for every multiprocessor to hold several.
    let enough = 8 * narrow(cuda.multiprocessors());
    let spread = conv.rows * across.div_ceil(THREADS) / enough;
    let length = spread.clamp(FEWEST_ROWS, MOST_ROWS);
    let long = Conv { run: length, ..conv };
    run(&format!("long_{dtype}_{room}_{each}"), long, across, conv.rows.div_ceil(length))?;
    run(&format!("state_{dtype}_{room}"), conv, channels, segments)
}

/// Whether two channels at a time can be moved.
fn whole_pairs(tensor: &Tensor<Cuda>) -> bool {
    let even =
        [tensor.cols(), tensor.stride(), tensor.offset()].iter().all(|n| n.is_multiple_of(2));
    tensor.dtype() == DType::BF16 && even
}
