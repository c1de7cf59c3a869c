//! How products of few rows by a list of matrices are cut: the host's side of `kernels/common_few.cuh`.

use super::common_vec::stored_columns;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::narrow;
use crate::weight::STRIPE;
use bytemuck::{Pod, Zeroable};
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::{Format, Weight};

/// Warps of a block, bytes of a warp's step, stages of its ring, most items of a round: `WARPS`, `STEP`, `STAGES`,
/// `MOST_ITEMS`.
const WARPS: usize = 16;
const STEP: usize = 2304;
const STAGES: usize = 2;
const MOST_ITEMS: usize = 4;

/// Runs of a tile: several leave blocks of a few tiles with a run for each warp, fewer need less room.
const SPLITS: [usize; 3] = [3, 2, 1];

/// Dynamic shared memory of a block, where the device has it (Hopper).
const MOST_SHARED: usize = 224 << 10;

/// Twin of `Cut` in `kernels/common_few.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Cut {
    tiles: u32,
    halves: u32,
    splits: u32,
    chunk: u32,
    pitch: u32,
    items: u32,
}

/// The cut of products with this weight of up to `most` items, each of eight times `eights` rows, and their launch; None
/// where the kernels do not take the operands.
pub(super) fn cut(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
    [most, eights]: [usize; 2],
) -> Option<(Cut, Shape)> {
    let columns = stored_columns(cuda, x, weight).filter(|_| cuda.hopper())?;
    if weight.format == Format::Nvfp4 && !weight.rows.is_multiple_of(STRIPE) {
        return None;
    }
    let halves = weight.cols.div_ceil(4 * columns);
    let steps = halves.div_ceil(2);
    // Neighbouring rows begin half the banks apart.
    let pitch = (halves * 8 * columns).next_multiple_of(128) + 64;
    let item = 8 * eights * pitch;
    SPLITS.into_iter().find_map(|wanted| {
        let chunk = steps.div_ceil(wanted);
        let splits = steps.div_ceil(chunk);
        let fixed = WARPS * STAGES * STEP + WARPS * splits * eights * 512;
        let items = (MOST_SHARED.checked_sub(fixed)? / item).min(MOST_ITEMS).min(most);
        let tiles = weight.rows.div_ceil(16);
        let cut = Cut {
            tiles: narrow(tiles),
            halves: narrow(halves),
            splits: narrow(splits),
            chunk: narrow(chunk),
            pitch: narrow(pitch),
            items: narrow(items),
        };
        let grid = [narrow(cuda.multiprocessors().min(tiles * most)), 1, 1];
        let shape =
            Shape { grid, threads: narrow(32 * WARPS), shared: narrow(fixed + items * item) };
        (items > 0).then_some((cut, shape))
    })
}
