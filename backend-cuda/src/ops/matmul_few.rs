//! Linear layers of a few rows to some dozens: `kernels/matmul_few.cu`, `kernels/matmul_few_sm90.cu` for NVFP4 weights and
//! `kernels/matmul_rows.cu` for F32 ones.

use super::common_few::{CutArg, cut};
use super::common_few_sm90;
use super::matmul::{operands, tensor_core};
use super::{StoreArg, function, one};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::switches::on;
use crate::view::{Bank, Window, bank, in_pieces, narrow, optional, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{Activation, Matmul};
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Weight};

/// Fewer rows are for the fused forms, which are faster there.
pub(super) const FEWEST: usize = 5;

/// Up to this many rows the weight's unpacking, done again for every 16, costs less than tiles that leave the device idle;
/// BF16 has nothing to unpack, but is read again.
const MOST: usize = 64;
const MOST_BF16: usize = 16;

/// Up to this many rows F32 weights are met row by row; from there on as sums of bf16.
const MOST_F32: usize = 256;

/// Twin of `Dense` in `kernels/matmul_few.cu` and `kernels/matmul_few_sm90.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Dense {
    x: Window,
    weight: Bank,
    bias: u64,
    how: StoreArg,
    out: Window,
    cut: CutArg,
    rows: u32,
    function: u32,
}

/// The cut, the launch and the kernel's NT, where the form takes the operands.
fn plan(cuda: &Cuda, x: &Tensor<Cuda>, weight: &Weight<Cuda>) -> Option<(CutArg, Shape, usize)> {
    let rows = x.rows();
    let most = if weight.format == Format::BF16 { MOST_BF16 } else { MOST };
    if !(FEWEST..=most).contains(&rows) || !on("matmul_few") {
        return None;
    }
    if weight.format == Format::Nvfp4 {
        return common_few_sm90::dense(cuda, x, weight);
    }
    // Long rows of sixteen do not fit beside the rings.
    [rows.div_ceil(8).min(2), 1].into_iter().find_map(|eights| {
        let (cut, shape) = cut(cuda, x, weight, [rows.div_ceil(8 * eights), eights])?;
        Some((cut, shape, eights))
    })
}

/// Whether [`matmul_few`] takes a product.
pub(super) fn takes(cuda: &Cuda, x: &Tensor<Cuda>, weight: &Weight<Cuda>) -> bool {
    plan(cuda, x, weight).is_some()
}

/// Queues the product where one of the forms takes it; `out` is where it goes through `activation`.
pub(super) fn matmul_few(
    cuda: &Cuda,
    op: &Matmul<'_, Cuda>,
    activation: Activation,
    out: &Tensor<Cuda>,
) -> Result<bool> {
    let (Some((cut, shape, eights)), Some((format, _))) =
        (plan(cuda, &op.x, op.weight), tensor_core(cuda, &op.x, op.weight))
    else {
        return Ok(false);
    };
    let dense = Dense {
        x: window(&op.x),
        weight: bank(op.weight),
        bias: optional(op.bias.as_ref()),
        how: StoreArg::from(op.store),
        out: window(out),
        cut,
        rows: narrow(op.x.rows()),
        function: function(activation),
    };
    let (file, name) = match op.weight.format {
        Format::Nvfp4 => ("matmul_few_sm90", format!("matmul_few_sm90_{eights}")),
        _ => ("matmul_few", format!("matmul_few_{format}_{eights}")),
    };
    cuda.launch_early(file, &name, shape, &mut one(dense)).map(|()| true)
}

/// Queues a product with an F32 weight where the plain f32 form for few rows takes it.
pub(super) fn matmul_rows(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<bool> {
    let rows = op.out.rows();
    let fits = op.weight.format == Format::F32
        && (FEWEST..=MOST_F32).contains(&rows)
        && op.x.dtype() == DType::BF16
        && in_pieces(&op.x)
        && op.weight.cols.is_multiple_of(4);
    if !fits || !cuda.tuned() || !on("matmul_rows") {
        return Ok(false);
    }
    let mut args = operands(op);
    // Small tiles leave no multiprocessor idle, large ones read the weight less often.
    let (tile, threads) = if rows <= 32 { (4, 512) } else { (8, 256) };
    let grid = [narrow(op.out.cols().div_ceil(8)), narrow(rows.div_ceil(tile)), 1];
    let shape = Shape { grid, threads, shared: 0 };
    let name = format!("matmul_rows_{tile}");
    cuda.launch_early("matmul_rows", &name, shape, &mut args).map(|()| true)
}
