//! Products with the chosen experts: by pair for few rows, by expert for rows sorted by `moe_group`.

use super::common_few::{CutArg, cut};
use super::common_few_sm90;
use super::matmul::{tensor_core, tile_shared, vec_warps};
use super::matmul_many::{WIDE_OUTPUTS, wide, wide_shared};
use super::{GRID_Y, function, moe_combine, one};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{Bank, Window, bank, in_pieces, narrow, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{Activation, ExpertInput, Matmul, MoeDown, MoeMatmul};
use whipsnake_core::tensor::DType;
use whipsnake_core::weight::Format;

/// Twin of `Moe` in `kernels/common_moe.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Moe {
    x: Window,
    weight: Bank,
    ids: Window,
    order: u64,
    offsets: u64,
    by_pair: u32,
    function: u32,
    pairs: u32,
    unused: u32,
    out: Window,
}

/// Rows of a tile for pairs that spread over the experts.
fn tile_rows(pairs: usize, experts: usize) -> usize {
    match pairs / experts.max(1) {
        0..=16 => 16,
        17..=96 => 64,
        _ => 128,
    }
}

/// Twin of `Few` in `kernels/moe_matmul_few.cu` and `kernels/moe_matmul_few_sm90.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Few {
    x: Window,
    weight: Bank,
    order: u64,
    offsets: u64,
    out: Window,
    cut: CutArg,
    by_pair: u32,
    top_k: u32,
    function: u32,
    early: u32,
}

/// Twin of `Beside` in `kernels/moe_matmul_few_sm90.cu`: a weight that all rows meet in the same launch.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Beside {
    weight: Bank,
    x: Window,
    sums: u64,
    parts: u32,
    rows: u32,
    pairs: u32,
    unused: u32,
}

/// Pairs of an expert that meet its weight together: `ROWS` of `kernels/moe_matmul_few.cu`.
const FEW: usize = 8;

/// Rows up to which the shared expert joins the others: with more its weight is read too often.
const MOST_BESIDE: usize = 16;

/// Experts that the kernels count, a thread each.
const MOST_EXPERTS: usize = 512;

/// Runs the form for sorted pairs that are few for each expert, where it takes the operands, with what lies beside them.
fn few_pairs(cuda: &Cuda, op: &MoeMatmul<'_, Cuda>, mut beside: Beside) -> Result<bool> {
    let (pairs, experts) = (op.out.rows(), op.weight.experts);
    let few = pairs <= FEW * experts && experts <= MOST_EXPERTS && on("moe_matmul_few");
    let more = beside.parts as usize * (beside.rows as usize).div_ceil(FEW);
    let items = (pairs / FEW + experts).min(pairs) + more;
    let plan = match op.weight.format {
        Format::Nvfp4 => {
            // A block has parts of two or three items.
            let wanted = if pairs > FEW / 2 * experts { 2 * FEW } else { FEW };
            common_few_sm90::items(cuda, &op.x, op.weight, [items, wanted])
        }
        _ => cut(cuda, &op.x, op.weight, [items, 1]),
    };
    let (Some(groups), Some((format, _)), Some((cut, shape)), true) =
        (&op.groups, tensor_core(cuda, &op.x, op.weight), plan, few)
    else {
        return Ok(false);
    };
    let few = Few {
        x: window(&op.x),
        weight: bank(op.weight),
        order: pointer(&groups.order),
        offsets: pointer(&groups.offsets),
        out: window(&op.out),
        cut,
        by_pair: u32::from(op.input == ExpertInput::Pair),
        top_k: narrow(op.ids.cols()),
        function: function(op.activation),
        // `moe_group` lets nothing start before it is done.
        early: u32::from(op.input == ExpertInput::Pair),
    };
    let mut args = one(few);
    if op.weight.format != Format::Nvfp4 {
        let name = format!("moe_matmul_few_{format}");
        return cuda.launch_early("moe_matmul_few", &name, shape, &mut args).map(|()| true);
    }
    beside.pairs = narrow(pairs);
    args.push(beside);
    cuda.launch_early("moe_matmul_few_sm90", "moe_matmul_few_sm90", shape, &mut args).map(|()| true)
}

/// Runs the experts' second product with the shared expert's among theirs, and sums both, where they are alike.
pub(super) fn with_shared(cuda: &Cuda, op: &MoeDown<'_, Cuda>) -> Result<bool> {
    let (down, combine) = (&op.down, &op.combine);
    let ([rows, outputs], width) = (combine.out.shape(), down.weight.cols);
    let alike = |shared: &&Matmul<'_, Cuda>| {
        let weight = shared.weight;
        let formats = [down.weight.format, weight.format] == [Format::Nvfp4; 2];
        let plain = shared.bias.is_none() && shared.store == combine.store;
        let fits =
            weight.cols.is_multiple_of(width) && tensor_core(cuda, &shared.x, weight).is_some();
        formats && plain && fits
    };
    let Some(shared) = op.shared.as_ref().filter(alike) else {
        return Ok(false);
    };
    if rows > MOST_BESIDE || !on("moe_beside") {
        return Ok(false);
    }
    let parts = shared.weight.cols / width;
    let beside = Beside {
        weight: bank(shared.weight),
        x: window(&shared.x),
        sums: cuda.workspace(parts * rows * outputs * 4)?,
        parts: narrow(parts),
        rows: narrow(rows),
        ..Beside::zeroed()
    };
    if !few_pairs(cuda, down, beside)? {
        return Ok(false);
    }
    moe_combine::combine(cuda, combine, beside.sums, beside.parts).map(|()| true)
}

/// Stages of `kernels/moe_matmul_sm90.cu`.
const WIDE_STAGES: usize = 5;

/// Tiles as wide as an expert's pairs, with room for experts that are more popular.
fn wide_tiles(
    cuda: &Cuda,
    pairs: usize,
    outputs: usize,
    experts: usize,
    args: &mut Args,
) -> Result<()> {
    let most = if pairs <= 40 * experts { 64 } else { 128 };
    let tiles = (pairs / most + experts).min(pairs);
    let grid = [narrow(outputs.div_ceil(WIDE_OUTPUTS)), narrow(tiles), 1];
    let shape = Shape { grid, threads: 256, shared: wide_shared(most, WIDE_STAGES) };
    cuda.launch("moe_matmul_sm90", &format!("moe_matmul_sm90_{most}"), shape, args)
}

/// Runs Hopper's form for BF16 weights, where it takes the operands.
fn wide_bf16(cuda: &Cuda, op: &MoeMatmul<'_, Cuda>, args: &mut Args) -> Result<bool> {
    let (pairs, weight) = (op.out.rows(), op.weight);
    let operands = [&op.x, &op.out].into_iter().all(|t| t.dtype() == DType::BF16 && in_pieces(t));
    let sizes = weight.cols.is_multiple_of(64) && weight.rows.is_multiple_of(8);
    let functions = [Activation::Identity, Activation::Relu2, Activation::Silu];
    let takes = weight.format == Format::BF16 && operands && sizes;
    let known = functions.contains(&op.activation) && weight.experts <= MOST_EXPERTS;
    if !takes || !known || !cuda.tuned() || !cuda.hopper() || !on("wgmma") {
        return Ok(false);
    }
    // `MOST` and `STAGES` of the kernel; narrow tiles leave room for more copies under way.
    let (most, stages) = if pairs <= 40 * weight.experts { (64, 8) } else { (192, 5) };
    // `STAGES * STAGE`, and the sums of 32 rows of both groups.
    let shared = stages * (most + WIDE_OUTPUTS) * 128 + 2 * 32 * 128;
    let tiles = (pairs / most + weight.experts).min(pairs) * weight.rows.div_ceil(WIDE_OUTPUTS);
    let grid = [narrow(tiles.min(cuda.multiprocessors())), 1, 1];
    let shape = Shape { grid, threads: 512, shared: narrow(shared) };
    let name = format!("moe_matmul_bf16_sm90_{most}");
    cuda.launch("moe_matmul_bf16_sm90", &name, shape, args).map(|()| true)
}

pub(crate) fn moe_matmul(cuda: &Cuda, op: &MoeMatmul<'_, Cuda>) -> Result<()> {
    let [pairs, outputs] = op.out.shape();
    let groups = op.groups.as_ref();
    if few_pairs(cuda, op, Beside::zeroed())? {
        return Ok(());
    }
    let mut args = one(Moe {
        x: window(&op.x),
        weight: bank(op.weight),
        ids: window(&op.ids),
        order: groups.map_or(0, |groups| pointer(&groups.order)),
        offsets: groups.map_or(0, |groups| pointer(&groups.offsets)),
        by_pair: u32::from(op.input == ExpertInput::Pair),
        function: function(op.activation),
        pairs: narrow(pairs),
        unused: 0,
        out: window(&op.out),
    });
    // Few pairs an expert leave wide tiles mostly empty.
    let sparse = pairs <= FEW / 2 * op.weight.experts;
    if groups.is_some() && !sparse && wide(cuda, &op.x, op.weight, &op.out) {
        return wide_tiles(cuda, pairs, outputs, op.weight.experts, &mut args);
    }
    if groups.is_some() && !sparse && wide_bf16(cuda, op, &mut args)? {
        return Ok(());
    }
    match tensor_core(cuda, &op.x, op.weight) {
        Some((format, columns)) if groups.is_some() => {
            let tile = tile_rows(pairs, op.weight.experts);
            let tiles = (pairs / tile + op.weight.experts).min(pairs);
            let grid = [narrow(outputs.div_ceil(128)), narrow(tiles), 1];
            let shape = Shape { grid, threads: 128, shared: tile_shared(columns, tile) };
            cuda.launch("moe_matmul", &format!("moe_matmul_tile_{format}_{tile}"), shape, &mut args)
        }
        Some((format, columns)) if pairs <= GRID_Y => {
            let blocks = outputs.div_ceil(16);
            let warps = vec_warps(op.weight.cols, columns);
            let grid = [narrow(blocks), narrow(pairs), 1];
            let shape = Shape { grid, threads: 32 * warps, shared: warps * 512 };
            cuda.launch("moe_matmul", &format!("moe_matmul_vec_{format}"), shape, &mut args)
        }
        _ => {
            let grid = [narrow(outputs.div_ceil(8)), narrow(pairs.min(GRID_Y)), 1];
            cuda.launch(
                "moe_matmul",
                "moe_matmul_plain",
                Shape { grid, threads: 256, shared: 0 },
                &mut args,
            )
        }
    }
}
