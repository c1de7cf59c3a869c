//! How products of few rows by a list of matrices are cut: the host's side of `kernels/common_few.cuh`, which takes BF16 and
//! FP8. NVFP4 has a form of its own (`common_few_sm90.rs`).

use super::common_vec::stored_columns;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::narrow;
use bytemuck::{Pod, Zeroable};
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::{Format, Weight};

/// Warps of a block, bytes of a warp's step, stages of its ring, most items of a round: `WARPS`, `STEP`, `STAGES`,
/// `MOST_ITEMS`.
pub(super) const WARPS: usize = 16;
const STEP: usize = 2048;
const STAGES: usize = 2;
const MOST_ITEMS: usize = 4;

/// Runs of a tile: several leave no warp idle in a block of few tiles, fewer need less room.
const MOST_SPLITS: usize = 8;

/// From this many tiles of a block on, three runs of a tile are as good as any.
const MANY_TILES: usize = 2 * WARPS;

/// Dynamic shared memory of a block, where the device has it (Hopper).
pub(super) const MOST_SHARED: usize = 224 << 10;

/// A cut as a kernel reads it, which its own header names.
pub(super) type CutArg = [u32; 8];

/// Twin of `Cut` in `kernels/common_few.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Cut {
    tiles: u32,
    steps: u32,
    halves: u32,
    splits: u32,
    chunk: u32,
    pitch: u32,
    items: u32,
    by_tile: u32,
}

/// The cut of products with this weight of up to `most` items, each of eight times `eights` rows, and their launch; None
/// where the kernels do not take the operands.
pub(super) fn cut(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
    [most, eights]: [usize; 2],
) -> Option<(CutArg, Shape)> {
    let takes = cuda.hopper() && weight.format != Format::Nvfp4;
    let columns = stored_columns(cuda, x, weight).filter(|_| takes)?;
    let halves = weight.cols.div_ceil(4 * columns);
    let steps = halves.div_ceil(2);
    // Neighbouring rows begin half the banks apart.
    let pitch = (halves * 8 * columns).next_multiple_of(128) + 64;
    let item = 8 * eights * pitch;
    let tiles = weight.rows.div_ceil(16);
    let share = (tiles * most).div_ceil(cuda.multiprocessors());
    chunks(steps, share).into_iter().find_map(|chunk| {
        let splits = steps.div_ceil(chunk);
        let fixed = WARPS * STAGES * STEP + share.min(WARPS) * splits * eights * 512;
        let items = (MOST_SHARED.checked_sub(fixed)? / item).min(MOST_ITEMS).min(most);
        let cut = Cut {
            tiles: narrow(tiles),
            steps: narrow(steps),
            halves: narrow(halves),
            splits: narrow(splits),
            chunk: narrow(chunk),
            pitch: narrow(pitch),
            items: narrow(items),
            by_tile: u32::from(share < WARPS),
        };
        let grid = [narrow(cuda.multiprocessors().min(tiles * most)), 1, 1];
        let shape =
            Shape { grid, threads: narrow(32 * WARPS), shared: narrow(fixed + items * item) };
        (items > 0).then_some((bytemuck::cast(cut), shape))
    })
}

/// Steps of a run, best first: those that leave the busiest warp of a block of `share` tiles the fewest steps, where a run
/// costs about half a step more.
fn chunks(steps: usize, share: usize) -> Vec<usize> {
    let chunk = |splits: usize| steps.div_ceil(splits);
    if share >= MANY_TILES {
        return [3, 2, 1].map(chunk).into();
    }
    let mut list: Vec<usize> = (1..=MOST_SPLITS).map(chunk).collect();
    list.dedup();
    list.sort_by_key(|chunk| (share * steps.div_ceil(*chunk)).div_ceil(WARPS) * (2 * chunk + 1));
    list
}

#[cfg(test)]
mod tests {
    use super::chunks;

    #[test]
    fn no_warp_is_left_without_a_run_where_tiles_are_few() {
        // Two tiles of 16 steps: eight runs each; five of 11: three; many tiles: three.
        assert_eq!(chunks(16, 2)[0], 2);
        assert_eq!(chunks(11, 5)[0], 4);
        assert_eq!(chunks(11, 84), [4, 6, 11]);
    }
}
