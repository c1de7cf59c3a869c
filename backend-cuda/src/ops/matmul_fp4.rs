//! Products of many rows with block-scaled FP4, on devices that have the instruction, for those who ask for them with
//! `WHIPSNAKE_CUDA_ON=fp4`: x is rounded to NVFP4 as the weight is. Compiled, but not run on such a device yet.

use super::{StoreArg, THREADS, one};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::switches::wanted;
use crate::view::{Bank, Window, bank, narrow, optional, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Matmul;
use whipsnake_core::weight::Format;

/// From this many rows tiles are full.
const ROWS: usize = 64;

/// Outputs of a block.
const OUTPUTS: usize = 128;

/// Twin of `Linear` in `kernels/matmul_fp4_sm120.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Linear {
    codes: u64,
    blocks: u64,
    units: u64,
    weight: Bank,
    bias: u64,
    store: StoreArg,
    out: Window,
    rows: u32,
    unused: u32,
}

/// Whether the product runs in FP4: it is asked for, and device and weight allow it. x is bf16 in 16-byte pieces.
pub(super) fn takes(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> bool {
    let stages = op.weight.format == Format::Nvfp4 && op.weight.cols.is_multiple_of(64);
    wanted("fp4") && cuda.fp4() && stages && op.out.rows() >= ROWS
}

/// Queues the product, with x rounded before it.
pub(super) fn matmul_fp4(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<()> {
    let ([rows, outputs], inputs) = (op.out.shape(), op.weight.cols);
    // What the rounded rows take: codes, block scales, units, each at a multiple of 256 bytes.
    let blocks_at = (rows * inputs / 2).next_multiple_of(256);
    let units_at = blocks_at + (rows * inputs / 16).next_multiple_of(256);
    let codes = cuda.workspace(units_at + rows * 4)?;
    let [blocks, units] = [blocks_at, units_at].map(|start| codes + start as u64);
    let mut args = Args::new();
    args.push(window(&op.x)).push(codes).push(blocks).push(units);
    let shape = Shape { grid: [narrow(rows), 1, 1], threads: THREADS, shared: 0 };
    cuda.launch("matmul_fp4_sm120", "matmul_fp4_rows", shape, &mut args)?;
    let linear = Linear {
        codes,
        blocks,
        units,
        weight: bank(op.weight),
        bias: optional(op.bias.as_ref()),
        store: StoreArg::from(op.store),
        out: window(&op.out),
        rows: narrow(rows),
        unused: 0,
    };
    let grid = [narrow(outputs.div_ceil(OUTPUTS)), narrow(rows.div_ceil(ROWS)), 1];
    let shape = Shape { grid, threads: 128, shared: 0 };
    cuda.launch("matmul_fp4_sm120", "matmul_fp4", shape, &mut one(linear))
}
