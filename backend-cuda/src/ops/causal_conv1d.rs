//! The short convolution: one launch for short segments, rows in parallel and then the state for long ones.

use super::{function, one, one_dtype};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::{Window, narrow, optional, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::CausalConv1d;

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
    unused: u32,
    state: Window,
    table: u64,
    places: u64,
    out: Window,
}

const THREADS: u32 = 128;

/// Rows of a thread in the long form: `ROWS` of the kernel.
const ROWS: u32 = 32;

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
        unused: 0,
        state: window(&op.state),
        table: pointer(&op.segments.table),
        places: pointer(&op.segments.places),
        out: window(&op.out),
    };
    let run = |form: &str, down: u32| {
        let grid = [conv.x.cols.div_ceil(THREADS), down, 1];
        let name = format!("causal_conv1d_{form}_{dtype}_{room}");
        cuda.launch_early(
            "causal_conv1d",
            &name,
            Shape { grid, threads: THREADS, shared: 0 },
            &mut one(conv),
        )
    };
    let segments = narrow(op.segments.shape.segments);
    if op.segments.shape.longest <= SHORT {
        return run("short", segments);
    }
    run("long", conv.rows.div_ceil(ROWS))?;
    run("state", segments)
}
