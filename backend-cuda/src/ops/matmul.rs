//! Linear layers: tensor cores for bf16 activations, the plain form for everything else.

use super::{GRID_Y, StoreArg};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::view::{bank, in_pieces, narrow, optional, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Matmul;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Weight};

/// Rows of a warp of the plain form: `PLAIN_ROWS` of the kernel.
const PLAIN_ROWS: usize = 4;

/// Outputs of a block of the tensor-core forms.
const VEC_OUTPUTS: usize = 16;
const TILE_OUTPUTS: usize = 128;

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

/// Warps that share a block's columns: more where there are few blocks.
pub(super) fn vec_warps(cuda: &Cuda, blocks: usize) -> u32 {
    if blocks <= cuda.multiprocessors() { 16 } else { 8 }
}

pub(crate) fn matmul(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<()> {
    let [rows, outputs] = op.out.shape();
    let mut args = Args::new();
    args.push(window(&op.x))
        .push(bank(op.weight))
        .push(optional(op.bias.as_ref()))
        .push(StoreArg::from(op.store));
    args.push(window(&op.out)).push(narrow(rows));
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
    if rows <= VEC_ROWS {
        let tiles = rows.div_ceil(8).next_power_of_two();
        let blocks = outputs.div_ceil(VEC_OUTPUTS);
        let warps = vec_warps(cuda, blocks);
        let shared = warps * narrow(tiles) * 512;
        let shape = Shape { grid: [narrow(blocks), 1, 1], threads: 32 * warps, shared };
        return cuda.launch("matmul", &format!("matmul_vec_{format}_{tiles}"), shape, &mut args);
    }
    let blocks = |tile: usize| outputs.div_ceil(TILE_OUTPUTS) * rows.div_ceil(tile);
    let (tile, threads) =
        if blocks(128) < 2 * cuda.multiprocessors() { (64, 128) } else { (128, 128) };
    let grid = [narrow(outputs.div_ceil(TILE_OUTPUTS)), narrow(rows.div_ceil(tile)), 1];
    let shape = Shape { grid, threads, shared: tile_shared(columns, tile) };
    cuda.launch("matmul", &format!("matmul_tile_{format}_{tile}"), shape, &mut args)
}
