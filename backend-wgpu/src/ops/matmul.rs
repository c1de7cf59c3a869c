//! Linear layers: few rows by output, many rows by tiles; a dispatch for each piece of the weight.

use super::{format_number, store_parts, unit_fours};
use crate::Wgpu;
use crate::call::{Call, in_fours, want_f32};
use crate::kernel::Kernel;
use crate::load::Piece;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Matmul;
use whipsnake_core::weight::Format;

/// Rows up to which a row of the weight is read once for all of them.
const FEW: usize = 4;

fn vec_kernel(format: Format, rows: usize, entry: &'static str) -> Kernel {
    // Rows are at most 4 and fours at most 8.
    Kernel::new("matmul_vec")
        .entry(entry)
        .with("FORMAT", format_number(format))
        .with("FOURS", unit_fours(format) as u32)
        .with("ROWS", rows as u32)
}

fn tile_kernel(format: Format, aligned: bool) -> Kernel {
    Kernel::new("matmul_tile")
        .with("FORMAT", format_number(format))
        .with("ALIGNED", u32::from(aligned))
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let mut list = Vec::new();
    for format in Format::ALL {
        for rows in [1, 2, 4] {
            list.extend(["main", "thread"].map(|entry| vec_kernel(format, rows, entry)));
        }
        list.extend([false, true].map(|aligned| tile_kernel(format, aligned)));
    }
    list
}

pub(crate) fn encode(gpu: &Wgpu, op: &Matmul<'_, Wgpu>) -> Result<()> {
    want_f32("matmul", &[&op.x, &op.out])?;
    let [rows, inputs] = op.x.shape();
    let unit = 4 * unit_fours(op.weight.format);
    let few = rows <= FEW && inputs.is_multiple_of(unit) && in_fours(&op.x);
    for piece in gpu.pieces(op.weight) {
        if few {
            by_output(gpu, op, &piece, inputs / unit)?;
        } else {
            by_tile(gpu, op, &piece)?;
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
    let (entry, outputs) =
        if gpu.variants.barrier_free { ("thread", 64) } else { ("main", 4) };
    let rows = op.x.rows();
    let call = bind(vec_kernel(op.weight.format, rows.next_power_of_two(), entry), op, piece)
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
