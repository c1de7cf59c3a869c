//! How products of few rows with NVFP4 weights are cut: the host's side of `kernels/common_few_sm90.cuh`.

use super::common_few::{CutArg, MOST_SHARED, WARPS};
use super::matmul::tensor_core;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::narrow;
use crate::weight::STRIPE;
use bytemuck::{Pod, Zeroable};
use std::cmp::Reverse;
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::Weight;

/// Columns of a unit, its bytes, and stages of a warp's ring: `UNIT` and `STAGES`.
const COLUMNS: usize = 64;
const UNIT: usize = 576;
const STAGES: usize = 2;

/// Most rows of a round: `MOST_STAGED`.
const MOST_STAGED: usize = 32;

/// Most units of a step, best first: the fewer steps the better, but small ones leave room for more rows.
const MOST_STEP: [usize; 3] = [8, 5, 3];

/// Runs of a tile: several leave no warp idle in a block of few tiles, fewer need less room.
const MOST_SPLITS: usize = 8;

/// From this many tiles of a block on, three runs of a tile are as good as any.
const MANY_TILES: usize = 2 * WARPS;

/// Twin of `Cut` in `kernels/common_few_sm90.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Cut {
    tiles: u32,
    units: u32,
    splits: u32,
    chunk: u32,
    step: u32,
    pitch: u32,
    rows: u32,
    by_tile: u32,
}

/// Blocks of a cluster, which share the columns of dense products: `PAIR` of `kernels/matmul_few_sm90.cu`; units of a step, best
/// first.
const PAIR: usize = 2;
const MOST_DENSE_STEP: [usize; 3] = [4, 3, 2];

/// Whether the kernels take the operands.
fn takes(cuda: &Cuda, x: &Tensor<Cuda>, weight: &Weight<Cuda>) -> bool {
    let whole = weight.cols.is_multiple_of(COLUMNS) && weight.rows.is_multiple_of(STRIPE);
    whole && cuda.hopper() && tensor_core(cuda, x, weight).is_some()
}

/// The cut of a dense product, its launch and how many eights of rows meet a tile together; None where the kernel does not
/// take the operands.
pub(super) fn dense(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
) -> Option<(CutArg, Shape, usize)> {
    if !takes(cuda, x, weight) {
        return None;
    }
    let (units, tiles) = (weight.cols / COLUMNS, weight.rows / STRIPE);
    let most = x.rows().div_ceil(8).next_power_of_two().min(4);
    let half = units.div_ceil(PAIR);
    let pitch = half * 2 * COLUMNS + 16;
    let each = |eights: usize| {
        let all = tiles * x.rows().div_ceil(8 * eights);
        let clusters = (cuda.multiprocessors() / PAIR).min(all);
        let share = all.div_ceil(clusters);
        let mut chunks: Vec<usize> =
            (1..=MOST_SPLITS).map(|splits| half.div_ceil(splits)).collect();
        // Both halves have as many runs, none of them empty.
        chunks.retain(|chunk| (half.div_ceil(*chunk) - 1) * chunk < units / PAIR);
        chunks.sort_by_key(|chunk| busiest(half, *chunk, share));
        let best = *chunks.first()?;
        let splits = half.div_ceil(best);
        MOST_DENSE_STEP.into_iter().find_map(|most| {
            let step = best.div_ceil(best.div_ceil(most));
            let shared =
                WARPS * STAGES * step * UNIT + 8 * eights * pitch + share * splits * eights * 512;
            let cut = Cut {
                tiles: narrow(tiles),
                units: narrow(units),
                splits: narrow(splits),
                chunk: narrow(best),
                step: narrow(step),
                pitch: narrow(pitch),
                rows: narrow(8 * eights),
                by_tile: 1,
            };
            let grid = [narrow(PAIR * clusters), 1, 1];
            let shape = Shape { grid, threads: narrow(32 * WARPS), shared: narrow(shared) };
            (shared <= MOST_SHARED).then_some((bytemuck::cast(cut), shape, eights))
        })
    };
    [4, 2, 1].into_iter().filter(|eights| *eights <= most).find_map(each)
}

/// The cut of products with this weight of up to `most` items, each of eight rows, with room for `wanted` rows where it can be
/// had, and their launch; None where the kernel does not take the operands.
pub(super) fn items(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
    [most, wanted]: [usize; 2],
) -> Option<(CutArg, Shape)> {
    if !takes(cuda, x, weight) {
        return None;
    }
    let units = weight.cols / COLUMNS;
    // Rows begin 16 bytes apart in the banks.
    let pitch = 2 * weight.cols + 16;
    let tiles = weight.rows / STRIPE;
    let share = (tiles * most).div_ceil(cuda.multiprocessors());
    let room = |[chunk, step]: [usize; 2]| {
        let splits = units.div_ceil(chunk);
        let fixed = WARPS * STAGES * step * UNIT + share.min(WARPS) * splits * 512;
        let rows = MOST_SHARED.saturating_sub(fixed) / pitch;
        (fixed, rows.min(MOST_STAGED).min(8 * most))
    };
    let list = cuts(units, share);
    let fits = |rows: usize| list.iter().copied().find(|cut| room(*cut).1 >= rows);
    let [chunk, step] = fits(wanted.min(8 * most)).or_else(|| fits(8))?;
    let (fixed, rows) = room([chunk, step]);
    let cut = Cut {
        tiles: narrow(tiles),
        units: narrow(units),
        splits: narrow(units.div_ceil(chunk)),
        chunk: narrow(chunk),
        step: narrow(step),
        pitch: narrow(pitch),
        rows: narrow(rows),
        by_tile: u32::from(share < WARPS),
    };
    let grid = [narrow(cuda.multiprocessors().min(tiles * most)), 1, 1];
    let shape = Shape { grid, threads: narrow(32 * WARPS), shared: narrow(fixed + rows * pitch) };
    Some((bytemuck::cast(cut), shape))
}

/// Units of the busiest warp of a block of `share` tiles, where a run costs about two units more.
fn busiest(units: usize, chunk: usize, share: usize) -> usize {
    (share * units.div_ceil(chunk)).div_ceil(WARPS) * (chunk + 2)
}

/// Units of a run and of a step, best first. Where a block has few tiles, those that leave its busiest warp the fewest units;
/// where it has many, the largest steps.
fn cuts(units: usize, share: usize) -> Vec<[usize; 2]> {
    let mut chunks: Vec<usize> =
        [3, 2, 1, 4, 5, 6, 7, MOST_SPLITS].map(|splits| units.div_ceil(splits)).into();
    chunks.dedup();
    if share < MANY_TILES {
        chunks.sort_by_key(|chunk| busiest(units, *chunk, share));
    }
    let steps = |most: usize| {
        let mut list: Vec<[usize; 2]> =
            chunks.iter().map(|chunk| [*chunk, chunk.div_ceil(chunk.div_ceil(most))]).collect();
        if share >= MANY_TILES {
            list.sort_by_key(|[_, step]| Reverse(*step));
        }
        list
    };
    MOST_STEP.into_iter().flat_map(steps).collect()
}

#[cfg(test)]
mod tests {
    use super::cuts;

    #[test]
    fn no_warp_is_left_without_a_run_where_tiles_are_few() {
        // Two tiles of 64 units: eight runs each; five of 42: three.
        assert_eq!(cuts(64, 2)[0], [8, 8]);
        assert_eq!(cuts(42, 5)[0], [14, 7]);
    }

    #[test]
    fn steps_are_large_where_tiles_are_many() {
        assert_eq!(cuts(42, 84)[..2], [[14, 7], [21, 7]]);
        assert_eq!(cuts(29, 84)[0], [15, 8]);
    }
}
