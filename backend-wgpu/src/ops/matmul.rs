//! Linear layers: few rows by output, many rows by tiles; a dispatch for each piece of the weight.

use super::{format_number, store_parts, unit_fours};
use crate::Wgpu;
use crate::call::{Call, in_fours, want_f32};
use crate::kernel::Kernel;
use crate::load::Piece;
use crate::variants::{Family, Variants};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Matmul;
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::Format;

/// Rows up to which a row of the weight is read once for all of them.
const FEW: usize = 8;

const FAMILY: Family = Family { name: "matmul_vec", subgroup: "matmul_vec_subgroup" };

/// Gives a kernel for few rows its constants.
pub(super) fn for_rows(kernel: Kernel, format: Format, rows: usize) -> Kernel {
    // Rows are at most 8 and fours at most 8.
    kernel
        .with("FORMAT", format_number(format))
        .with("FOURS", unit_fours(format) as u32)
        .with("ROWS", rows.next_power_of_two() as u32)
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

pub(crate) fn kernels() -> Vec<Kernel> {
    let mut list = Vec::new();
    for format in Format::ALL {
        for rows in [1, 2, 4, 8] {
            let kernel = |v: Variants| for_rows(v.vec_kernel(FAMILY).0, format, rows);
            list.extend(Variants::all().map(kernel));
        }
        list.extend([false, true].map(|aligned| tile_kernel(format, aligned)));
    }
    list
}

pub(crate) fn encode(gpu: &Wgpu, op: &Matmul<'_, Wgpu>) -> Result<()> {
    want_f32("matmul", &[&op.x, &op.out])?;
    let unit = unit_of(&op.x, op.weight.format);
    for piece in gpu.pieces(op.weight) {
        match unit {
            Some(unit) => by_output(gpu, op, &piece, op.x.cols() / unit)?,
            None => by_tile(gpu, op, &piece)?,
        }
    }
    Ok(())
}

/// The bindings that both kernels share.
fn bind(kernel: Kernel, op: &Matmul<'_, Wgpu>, piece: &Piece<'_>) -> Call {
    Call::new(kernel)
        .whole(piece.data, false)
        .whole(piece.scales, false)
        .input(&op.x)
        .input_or(op.bias.as_ref(), &op.x)
        .output(&op.out)
}

fn by_output(gpu: &Wgpu, op: &Matmul<'_, Wgpu>, piece: &Piece<'_>, units: usize) -> Result<()> {
    let (accumulate, scale) = store_parts(op.store);
    let (kernel, outputs) = gpu.variants.vec_kernel(FAMILY);
    let rows = op.x.rows();
    let call = bind(for_rows(kernel, op.weight.format, rows), op, piece)
        .sizes([rows, units, piece.count, piece.first, usize::from(op.bias.is_some()), accumulate])
        .floats([scale, op.weight.scales[0]]);
    gpu.dispatch(call, piece.count.div_ceil(outputs))
}

fn by_tile(gpu: &Wgpu, op: &Matmul<'_, Wgpu>, piece: &Piece<'_>) -> Result<()> {
    let (accumulate, scale) = store_parts(op.store);
    let [rows, inputs] = op.x.shape();
    let row_tiles = rows.div_ceil(64);
    let call = bind(tile_kernel(op.weight.format, inputs.is_multiple_of(4)), op, piece)
        .sizes([rows, inputs, piece.count, piece.first, row_tiles])
        .sizes([usize::from(op.bias.is_some()), accumulate])
        .floats([scale, op.weight.scales[0]]);
    gpu.dispatch(call, row_tiles * piece.count.div_ceil(64))
}
