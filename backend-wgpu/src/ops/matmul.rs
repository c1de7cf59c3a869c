//! Linear layers: few rows by output, many rows by tiles, all in blocks where barriers cost too much; a dispatch for each
//! piece of the weight.

use super::{format_number, store_parts, unit_fours};
use crate::Wgpu;
use crate::buffer::{Buffer, WORKSPACE};
use crate::call::{Call, in_fours, want_f32};
use crate::kernel::Kernel;
use crate::load::Piece;
use crate::variants::Variants;
use whipsnake_core::error::Result;
use whipsnake_core::ops::{Matmul, MoeCombine};
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::Format;

/// Rows up to which a row of the weight is read once for all of them.
const FEW: usize = 8;
/// Columns of x that cooperative matrices take at once.
const COOP_COLUMNS: usize = 32;

const SHADER: &str = "matmul_vec";

/// Every kernel for few rows of a format.
pub(super) fn few_row_kernels(shader: &'static str, format: Format, rows: &[usize]) -> Vec<Kernel> {
    let mut list = Vec::new();
    for variants in Variants::all() {
        for outputs in [1, 4096, 10304, 16384] {
            let kernel = |&rows| variants.vec_kernel(shader, format, [rows, outputs]).kernel;
            list.extend(rows.iter().map(kernel));
        }
    }
    list
}

/// Columns of a 16-byte unit, where rows are few and may be read by whole units.
pub(super) fn unit_of(x: &Tensor<Wgpu>, format: Format) -> Option<usize> {
    let unit = 4 * unit_fours(format);
    (x.rows() <= FEW && x.cols().is_multiple_of(unit) && in_fours(x)).then_some(unit)
}

fn tile_kernel(format: Format, aligned: bool) -> Kernel {
    Kernel::new("matmul_tile")
        .with("FORMAT", format_number(format))
        .with("ALIGNED", u32::from(aligned))
}

/// Rows of a block without barriers: what its invocations keep sums of.
const BLOCK_ROWS: usize = 8;
/// Outputs of a workgroup of such blocks.
pub(super) const BLOCK_OUTPUTS: usize = 128;

/// Gives a kernel without barriers its constants; and its rows.
pub(super) fn block_kernel(shader: &'static str, format: Format, rows: usize) -> (Kernel, usize) {
    let rows = rows.next_power_of_two().min(BLOCK_ROWS);
    // At most 8.
    let kernel =
        Kernel::new(shader).with("FORMAT", format_number(format)).with("ROWS", rows as u32);
    (kernel, rows)
}

/// Whether a product with rows of x runs without barriers.
pub(super) fn by_blocks(gpu: &Wgpu, x: &Tensor<Wgpu>) -> bool {
    gpu.variants.barrier_free() && x.cols().is_multiple_of(4) && in_fours(x)
}

/// The formats whose elements are exact as halves.
pub(super) const HALVES: [Format; 4] = [Format::F16, Format::BF16, Format::Nvfp4, Format::Fp8];

/// Gives a kernel for cooperative matrices its constants.
pub(super) fn coop_kernel(shader: &'static str, format: Format) -> Kernel {
    // At most 8.
    let fours = unit_fours(format) as u32;
    Kernel::new(shader).entry("coop").with("FORMAT", format_number(format)).with("FOURS", fours)
}

/// Whether a product with rows of x runs on cooperative matrices.
pub(super) fn by_halves(gpu: &Wgpu, x: &Tensor<Wgpu>, format: Format) -> bool {
    let whole = x.cols().is_multiple_of(COOP_COLUMNS) && in_fours(x);
    gpu.variants.cooperative && whole && HALVES.contains(&format) && x.rows() <= SCALED_ROWS
}

/// Rows whose scales fit the workspace.
const SCALED_ROWS: usize = WORKSPACE as usize / 4;

fn row_scale_kernel() -> Kernel {
    Kernel::new("matmul_row_scale")
}

/// Powers of two that bring rows of x into the range of halves, in the workspace.
pub(super) fn row_scales<'a>(gpu: &'a Wgpu, x: &Tensor<Wgpu>) -> Result<&'a Buffer> {
    let buffer = gpu.workspace()?;
    let call = Call::new(row_scale_kernel()).input(x).whole(buffer, true);
    gpu.dispatch(call.sizes([x.rows(), x.cols() / 4]), x.rows())?;
    Ok(buffer)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let mut list = vec![row_scale_kernel()];
    list.extend(HALVES.map(|format| coop_kernel("matmul_coop", format)));
    for format in Format::ALL {
        list.extend(few_row_kernels(SHADER, format, &[1, 2, 4, 8]));
        list.extend([false, true].map(|aligned| tile_kernel(format, aligned)));
        list.extend([1, 2, 4, 8].map(|rows| block_kernel("matmul_block", format, rows).0));
    }
    list
}

pub(crate) fn encode(gpu: &Wgpu, op: &Matmul<'_, Wgpu>) -> Result<()> {
    want_f32("matmul", &[&op.x, &op.out])?;
    if by_blocks(gpu, &op.x) {
        return gpu.pieces(op.weight).iter().try_for_each(|p| by_block(gpu, op, p));
    }
    if let Some(unit) = unit_of(&op.x, op.weight.format) {
        let units = op.x.cols() / unit;
        return by_output(gpu, op, units, None);
    }
    if by_halves(gpu, &op.x, op.weight.format) {
        let scales = row_scales(gpu, &op.x)?;
        return gpu.pieces(op.weight).iter().try_for_each(|p| by_coop(gpu, op, p, scales));
    }
    gpu.pieces(op.weight).iter().try_for_each(|p| by_tile(gpu, op, p))
}

/// The bindings that the kernels share; scales of rows where they take them.
fn bind(
    kernel: Kernel,
    op: &Matmul<'_, Wgpu>,
    piece: &Piece<'_>,
    row_scales: Option<&Buffer>,
) -> Call {
    let mut call = Call::new(kernel).whole(piece.data, false).whole(piece.scales, false);
    if let Some(scales) = row_scales {
        call = call.whole(scales, false);
    }
    call.input(&op.x).input_or(op.bias.as_ref(), &op.x).output(&op.out)
}

/// Few rows; a weighted sum of pairs goes into the target with the product where there is one.
pub(super) fn by_output(
    gpu: &Wgpu,
    op: &Matmul<'_, Wgpu>,
    units: usize,
    sum: Option<&MoeCombine<Wgpu>>,
) -> Result<()> {
    let (accumulate, scale) = store_parts(op.store);
    let rows = op.x.rows();
    let top_k = sum.map_or(0, |sum| sum.weights.cols());
    for piece in gpu.pieces(op.weight) {
        let few = gpu.variants.vec_kernel(SHADER, op.weight.format, [rows, piece.count]);
        let call = bind(few.kernel, op, &piece, None)
            .input_or(sum.map(|sum| &sum.x), &op.x)
            .input_or(sum.map(|sum| &sum.weights), &op.x)
            .sizes([rows, units, piece.count, piece.first])
            .sizes([usize::from(op.bias.is_some()), accumulate, top_k])
            .floats([scale, op.weight.scales[0]]);
        gpu.dispatch(call, piece.count.div_ceil(few.outputs))?;
    }
    Ok(())
}

fn by_tile(gpu: &Wgpu, op: &Matmul<'_, Wgpu>, piece: &Piece<'_>) -> Result<()> {
    let (accumulate, scale) = store_parts(op.store);
    let [rows, inputs] = op.x.shape();
    let row_tiles = rows.div_ceil(64);
    let call = bind(tile_kernel(op.weight.format, inputs.is_multiple_of(4)), op, piece, None)
        .sizes([rows, inputs, piece.count, piece.first, row_tiles])
        .sizes([usize::from(op.bias.is_some()), accumulate])
        .floats([scale, op.weight.scales[0]]);
    gpu.dispatch(call, row_tiles * piece.count.div_ceil(64))
}

fn by_block(gpu: &Wgpu, op: &Matmul<'_, Wgpu>, piece: &Piece<'_>) -> Result<()> {
    let (accumulate, scale) = store_parts(op.store);
    let [rows, inputs] = op.x.shape();
    let (kernel, height) = block_kernel("matmul_block", op.weight.format, rows);
    let row_blocks = rows.div_ceil(height);
    let call = bind(kernel, op, piece, None)
        .sizes([rows, inputs, piece.count, piece.first, row_blocks])
        .sizes([usize::from(op.bias.is_some()), accumulate])
        .floats([scale, op.weight.scales[0]]);
    gpu.dispatch(call, row_blocks * piece.count.div_ceil(BLOCK_OUTPUTS))
}

fn by_coop(
    gpu: &Wgpu,
    op: &Matmul<'_, Wgpu>,
    piece: &Piece<'_>,
    row_scales: &Buffer,
) -> Result<()> {
    let (accumulate, scale) = store_parts(op.store);
    let [rows, inputs] = op.x.shape();
    let row_tiles = rows.div_ceil(64);
    let kernel = coop_kernel("matmul_coop", op.weight.format);
    let call = bind(kernel, op, piece, Some(row_scales))
        .sizes([rows, inputs, piece.count, piece.first, row_tiles])
        .sizes([usize::from(op.bias.is_some()), accumulate])
        .floats([scale, op.weight.scales[0]]);
    gpu.dispatch(call, row_tiles * piece.count.div_ceil(128))
}
