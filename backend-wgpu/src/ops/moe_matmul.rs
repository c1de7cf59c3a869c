//! Products with chosen experts: few pairs by expert id, many sorted by expert; a dispatch for each piece of the bank.

use super::matmul::{
    BLOCK_OUTPUTS, HALVES, block_kernel, by_blocks, by_halves, coop_kernel, few_row_kernels,
    row_scales,
};
use super::moe_up::Choice;
use super::{activation_number, format_number, unit_fours};
use crate::Wgpu;
use crate::buffer::Buffer;
use crate::call::{Call, in_fours, want_f32};
use crate::kernel::Kernel;
use crate::load::Piece;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::{ExpertGroups, ExpertInput, MoeMatmul};
use whipsnake_core::weight::Format;

pub(super) const SHADER: &str = "moe_matmul_vec";

/// Pairs of a tile.
const TILE: usize = 64;

fn tile_kernel(format: Format, aligned: bool, sorted: bool) -> Kernel {
    Kernel::new("moe_matmul_tile")
        .with("FORMAT", format_number(format))
        .with("ALIGNED", u32::from(aligned))
        .with("SORTED", u32::from(sorted))
}

/// The kernel without barriers, and the pairs of its tiles.
fn pair_block_kernel(format: Format, pairs: usize, sorted: bool) -> (Kernel, usize) {
    let (kernel, height) = block_kernel("moe_matmul_block", format, if sorted { pairs } else { 1 });
    (kernel.with("SORTED", u32::from(sorted)), height)
}

fn sorted_coop_kernel(format: Format) -> Kernel {
    coop_kernel("moe_matmul_coop", format).with("SORTED", 1)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let mut list: Vec<_> = HALVES.map(sorted_coop_kernel).into();
    for format in Format::ALL {
        list.extend(few_row_kernels(SHADER, format, &[1]));
        list.push(pair_block_kernel(format, 1, false).0);
        list.extend([1, 2, 4, 8].map(|pairs| pair_block_kernel(format, pairs, true).0));
        for aligned in [false, true] {
            list.extend([false, true].map(|sorted| tile_kernel(format, aligned, sorted)));
        }
    }
    list
}

pub(crate) fn encode(gpu: &Wgpu, op: &MoeMatmul<'_, Wgpu>) -> Result<()> {
    want_f32("moe_matmul", &[&op.x, &op.out])?;
    let units = units(op);
    let pieces = if op.weight.experts > 1 { gpu.pieces(op.weight) } else { single(gpu, op)? };
    if let Some(groups) = &op.groups
        && by_halves(gpu, &op.x, op.weight.format)
    {
        let scales = row_scales(gpu, &op.x)?;
        return pieces.iter().try_for_each(|p| by_coop(gpu, op, groups, p, scales));
    }
    if by_blocks(gpu, &op.x) {
        return pieces.iter().try_for_each(|p| by_block(gpu, op, p));
    }
    for piece in pieces {
        match units {
            Some(units) if op.groups.is_none() => by_output(gpu, op, &piece, units, None)?,
            _ => by_tile(gpu, op, &piece)?,
        }
    }
    Ok(())
}

/// Units of a row, where it may be read by whole ones.
pub(super) fn units(op: &MoeMatmul<'_, Wgpu>) -> Option<usize> {
    let unit = 4 * unit_fours(op.weight.format);
    let whole = op.x.cols().is_multiple_of(unit) && in_fours(&op.x);
    whole.then_some(op.x.cols() / unit)
}

/// A bank of one expert is stored as a plain weight; its rows must lie in one buffer.
fn single<'a>(gpu: &Wgpu, op: &MoeMatmul<'a, Wgpu>) -> Result<Vec<Piece<'a>>> {
    let mut pieces = gpu.pieces(op.weight);
    if pieces.len() > 1 {
        return Err(Error::op(
            "moe_matmul",
            format!("{}: its one expert is more than the device binds", op.weight.name),
        ));
    }
    pieces.iter_mut().for_each(|piece| piece.count = 1);
    Ok(pieces)
}

fn per_row(op: &MoeMatmul<'_, Wgpu>) -> usize {
    usize::from(op.input == ExpertInput::Row)
}

fn scaled(op: &MoeMatmul<'_, Wgpu>) -> usize {
    usize::from(matches!(op.weight.format, Format::Nvfp4 | Format::Fp8))
}

/// The bindings that come first in every kernel.
fn bind(gpu: &Wgpu, kernel: Kernel, op: &MoeMatmul<'_, Wgpu>, piece: &Piece<'_>) -> Call {
    Call::new(kernel)
        .whole(piece.data, false)
        .whole(piece.scales, false)
        .whole(gpu.matrix_scales(op.weight), false)
}

/// Tiles of `height` pairs: an expert's last may be part empty, so one more for each expert that has pairs.
fn sorted_tiles(op: &MoeMatmul<'_, Wgpu>, height: usize) -> usize {
    let pairs = op.out.rows();
    pairs.div_ceil(height) + op.weight.experts.min(pairs)
}

fn by_coop(
    gpu: &Wgpu,
    op: &MoeMatmul<'_, Wgpu>,
    groups: &ExpertGroups<Wgpu>,
    piece: &Piece<'_>,
    row_scales: &Buffer,
) -> Result<()> {
    let (pairs, outputs, inputs) = (op.out.rows(), op.out.cols(), op.x.cols());
    let tiles = sorted_tiles(op, TILE);
    let call = bind(gpu, sorted_coop_kernel(op.weight.format), op, piece)
        .whole(row_scales, false)
        .input(&op.x)
        .input(&groups.order)
        .input(&groups.offsets)
        .output(&op.out)
        .sizes([pairs, op.ids.cols(), per_row(op), inputs, outputs, piece.first, piece.count])
        .sizes([activation_number(op.activation), scaled(op), tiles]);
    gpu.dispatch(call, tiles * outputs.div_ceil(128))
}

/// Few pairs, whose experts were chosen before or are chosen on the way.
pub(super) fn by_output(
    gpu: &Wgpu,
    op: &MoeMatmul<'_, Wgpu>,
    piece: &Piece<'_>,
    units: usize,
    choice: Option<&Choice<'_>>,
) -> Result<()> {
    let (pairs, outputs) = (op.out.rows(), op.out.cols());
    let format = op.weight.format;
    let few = gpu.variants.vec_kernel(SHADER, format, [1, pairs * outputs]);
    let kernel = match choice {
        Some(choice) => choice.kernel(few.kernel),
        None => few.kernel,
    };
    let call = bind(gpu, kernel, op, piece).input(&op.x);
    let call = match choice {
        Some(choice) => choice.bind(call.output(&op.ids).output(&op.out)),
        None => call.input(&op.ids).output(&op.out).sizes([0; 6]),
    };
    let call = call
        .sizes([1, units, outputs])
        .sizes([pairs, op.ids.cols(), per_row(op), piece.first, piece.count])
        .sizes([activation_number(op.activation), scaled(op)])
        .sizes(choice.map_or([0; 3], Choice::sizes))
        .floats(choice.map_or([0.0; 2], Choice::floats));
    gpu.dispatch(call, pairs * outputs.div_ceil(few.outputs))
}

fn by_block(gpu: &Wgpu, op: &MoeMatmul<'_, Wgpu>, piece: &Piece<'_>) -> Result<()> {
    let sorted = op.groups.is_some();
    let (kernel, height) = pair_block_kernel(op.weight.format, op.out.rows(), sorted);
    by_pairs(gpu, op, piece, kernel, [height, BLOCK_OUTPUTS])
}

fn by_tile(gpu: &Wgpu, op: &MoeMatmul<'_, Wgpu>, piece: &Piece<'_>) -> Result<()> {
    let aligned = op.x.cols().is_multiple_of(4);
    let kernel = tile_kernel(op.weight.format, aligned, op.groups.is_some());
    by_pairs(gpu, op, piece, kernel, [TILE, 64])
}

/// Workgroups of `height` sorted pairs, or of one pair as it comes, by `width` outputs.
fn by_pairs(
    gpu: &Wgpu,
    op: &MoeMatmul<'_, Wgpu>,
    piece: &Piece<'_>,
    kernel: Kernel,
    [height, width]: [usize; 2],
) -> Result<()> {
    let (pairs, outputs, inputs) = (op.out.rows(), op.out.cols(), op.x.cols());
    let (order, offsets, tiles) = match &op.groups {
        Some(groups) => (&groups.order, &groups.offsets, sorted_tiles(op, height)),
        None => (&op.ids, &op.ids, pairs),
    };
    let call = bind(gpu, kernel, op, piece)
        .input(&op.x)
        .input(order)
        .input(offsets)
        .output(&op.out)
        .sizes([pairs, op.ids.cols(), per_row(op), inputs, outputs, piece.first, piece.count])
        .sizes([activation_number(op.activation), scaled(op), tiles]);
    gpu.dispatch(call, tiles * outputs.div_ceil(width))
}
