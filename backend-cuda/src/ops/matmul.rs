//! Linear layers: tensor cores for bf16 activations, the plain form for everything else.

use super::common_nvfp4::{self, Deal, MOST_ROWS, padded_rows, reads, row_pitch, sums};
use super::common_vec::{deal, streams, tiles};
use super::matmul_few::{matmul_few, matmul_rows};
use super::matmul_many::matmul_many;
use super::{GRID_Y, StoreArg, common_phases, one};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{Bank, Window, bank, in_pieces, narrow, optional, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{Activation, Matmul};
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Weight};

/// Rows of a warp of the plain form: `PLAIN_ROWS` of the kernel.
const PLAIN_ROWS: usize = 4;

/// Outputs of a block of the tensor-core forms.
const VEC_OUTPUTS: usize = 16;
const TILE_OUTPUTS: usize = 128;

/// Most warps of a block.
const MAX_WARPS: usize = 16;

/// Up to this many rows, one pass over the weight serves them all.
const VEC_ROWS: usize = 32;

/// The format's name and the columns of 16 stored bytes, where the tensor-core forms take the operands.
pub(super) fn tensor_core(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
) -> Option<(&'static str, usize)> {
    let (name, columns) = match weight.format {
        Format::BF16 => ("bf16", 8),
        Format::Fp8 => ("fp8", 16),
        Format::Nvfp4 => ("nvfp4", 32),
        Format::F32 | Format::F16 => return None,
    };
    let fits = x.dtype() == DType::BF16 && in_pieces(x) && weight.cols.is_multiple_of(columns);
    (cuda.tuned() && fits).then_some((name, columns))
}

/// Dynamic shared memory of a tile: `STAGES * STAGE` of `Tile` in `kernels/common_mma.cuh`.
pub(super) fn tile_shared(columns: usize, rows: usize) -> u32 {
    let (stages, pitch) = if columns == 8 { (2, 144) } else { (3, 1024 / columns) };
    narrow(stages * (rows * 144 + TILE_OUTPUTS * pitch))
}

/// Warps that share a block's columns: as many as make their last turn a full one. A turn of a warp takes as many
/// pieces ahead as `AHEAD` of `product_vec`, four lanes wide.
pub(super) fn vec_warps(inputs: usize, columns: usize) -> u32 {
    let ahead = if columns == 8 { 4 } else { 2 };
    let turns = inputs.div_ceil(4 * columns * ahead);
    narrow(turns.div_ceil(turns.div_ceil(MAX_WARPS)))
}

/// Twin of `Vec` in `kernels/matmul_vec.cu` and `matmul_nvfp4.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Vec {
    x: Window,
    weight: Bank,
    bias: u64,
    how: StoreArg,
    out: Window,
    rows: u32,
    groups: u32,
    splits: u32,
    unused: u32,
}

/// Runs the form for few rows, where it takes the operands.
fn few_rows(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<bool> {
    let rows = op.out.rows();
    let lines = streams(cuda, rows, op.weight);
    let (Some(deal), true) = (deal(cuda, &op.x, op.weight, lines), on("matmul_vec")) else {
        return Ok(false);
    };
    let vec = Vec {
        x: window(&op.x),
        weight: bank(op.weight),
        bias: optional(op.bias.as_ref()),
        how: StoreArg::from(op.store),
        out: window(&op.out),
        rows: narrow(rows),
        groups: deal.groups,
        splits: deal.splits,
        unused: 0,
    };
    if let Some((outputs, shape)) = spread(cuda, op) {
        let name = format!("matmul_nvfp4_{outputs}_{}", padded_rows(rows));
        cuda.launch_early("matmul_nvfp4", &name, shape, &mut one(vec))?;
        return Ok(true);
    }
    let shape = deal.shape();
    let form = if lines { "lines".into() } else { tiles(rows).to_string() };
    cuda.launch_early("matmul_vec", &format!("matmul_vec_{form}"), shape, &mut one(vec))?;
    Ok(true)
}

/// Outputs of a tile and the launch of the NVFP4 form, where it takes the operands.
fn spread(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Option<(usize, Shape)> {
    let [rows, cols] = op.x.shape();
    let fits =
        rows <= MOST_ROWS && common_nvfp4::takes(cuda, "matmul_nvfp4", op.weight) && reads(&op.x);
    // Tiles of 16 spread unevenly where a block has one or two.
    let outputs = if op.weight.rows > 32 * cuda.multiprocessors() { 16 } else { 8 };
    let deal = Deal::new(op.weight.rows.div_ceil(outputs), cuda.multiprocessors());
    let sums = sums([padded_rows(rows), outputs], deal.runs);
    let sizes = [row_pitch(outputs, cols), sums];
    let shape = deal.shape(cuda, padded_rows(rows), sizes).filter(|_| fits)?;
    Some((outputs, shape))
}

/// What the forms without a struct of their own are told.
pub(super) fn operands(op: &Matmul<'_, Cuda>) -> Args {
    let mut args = Args::new();
    args.push(window(&op.x))
        .push(bank(op.weight))
        .push(optional(op.bias.as_ref()))
        .push(StoreArg::from(op.store));
    args.push(window(&op.out)).push(narrow(op.out.rows()));
    args
}

pub(crate) fn matmul(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<()> {
    if common_phases::matmul(cuda, op)
        || matmul_few(cuda, op, Activation::Identity, &op.out)?
        || matmul_rows(cuda, op)?
        || matmul_many(cuda, op)?
        || few_rows(cuda, op)?
    {
        return Ok(());
    }
    let [rows, outputs] = op.out.shape();
    let mut args = operands(op);
    let Some((format, columns)) = tensor_core(cuda, &op.x, op.weight) else {
        let down = rows.div_ceil(PLAIN_ROWS).min(GRID_Y);
        let grid = [narrow(outputs.div_ceil(8)), narrow(down), 1];
        return cuda.launch(
            "matmul",
            "matmul_plain",
            Shape { grid, threads: 256, shared: 0 },
            &mut args,
        );
    };
    let blocks = |tile: usize| outputs.div_ceil(TILE_OUTPUTS) * rows.div_ceil(tile);
    // Where tiles leave most of the device idle, the second pass over the weight comes from the cache.
    if rows <= VEC_ROWS || (rows <= 2 * VEC_ROWS && blocks(64) < cuda.multiprocessors() / 2) {
        let tiles = VEC_ROWS / 8;
        let warps = vec_warps(op.weight.cols, columns);
        let grid = [narrow(outputs.div_ceil(VEC_OUTPUTS)), narrow(rows.div_ceil(8 * tiles)), 1];
        let shape = Shape { grid, threads: 32 * warps, shared: warps * narrow(tiles) * 512 };
        return cuda.launch("matmul", &format!("matmul_vec_{format}_{tiles}"), shape, &mut args);
    }
    let tile = if blocks(128) < 2 * cuda.multiprocessors() { 64 } else { 128 };
    let grid = [narrow(outputs.div_ceil(TILE_OUTPUTS)), narrow(rows.div_ceil(tile)), 1];
    let shape = Shape { grid, threads: 128, shared: tile_shared(columns, tile) };
    cuda.launch("matmul", &format!("matmul_tile_{format}_{tile}"), shape, &mut args)
}
