//! The chosen experts' second product, its weighted sum and the shared expert's second product: one launch for few rows, two for
//! some.

use super::common_vec::{TILE, stored_columns};
use super::moe_matmul::with_shared;
use super::{GRID_Y, StoreArg, common_phases, one};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::{Bank, Window, bank, narrow, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{ExpertInput, Matmul, MoeDown};
use whipsnake_core::step::Step;

/// Up to this many rows the shared expert's weight is read anew for each row, from the cache.
const SHARED_HERE: usize = 2;

/// Warps of a block, those that share an expert, and bytes of a warp's ring: `WARPS`, `SHARES`, `STAGES * STAGE`.
const WARPS: usize = 16;
const SHARES: usize = 2;
const RING: usize = 4 * 1152;

/// Twin of `MoeDown` in `kernels/moe_down.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Arguments {
    x: Window,
    weight: Bank,
    ids: Window,
    weights: Window,
    shared_x: Window,
    shared: Bank,
    how: StoreArg,
    out: Window,
    parts: u32,
    unused: u32,
}

pub(crate) fn moe_down(cuda: &Cuda, step: &Step<'_, Cuda>, op: &MoeDown<'_, Cuda>) -> Result<bool> {
    if common_phases::moe_down(cuda, op) || with_shared(cuda, op)? {
        return Ok(true);
    }
    let (down, combine) = (&op.down, &op.combine);
    let rows = combine.out.rows();
    let fits = down.groups.is_none() && down.input == ExpertInput::Pair && rows <= GRID_Y;
    if !fits || stored_columns(cuda, &down.x, down.weight).is_none() {
        return Ok(false);
    }
    let here = |shared: &&Matmul<'_, Cuda>| {
        let plain = shared.bias.is_none() && shared.store == combine.store;
        rows <= SHARED_HERE && plain && stored_columns(cuda, &shared.x, shared.weight).is_some()
    };
    let shared = op.shared.as_ref().filter(here);
    // The warps that the experts leave over, or all of them.
    let parts = shared.map_or(0, |shared| {
        let columns = stored_columns(cuda, &shared.x, shared.weight).unwrap_or(8);
        (WARPS - SHARES * down.ids.cols() % WARPS).min(shared.weight.cols.div_ceil(8 * columns))
    });
    let arguments = Arguments {
        x: window(&down.x),
        weight: bank(down.weight),
        ids: window(&down.ids),
        weights: window(&combine.weights),
        shared_x: shared.map_or_else(Window::zeroed, |shared| window(&shared.x)),
        shared: shared.map_or_else(Bank::zeroed, |shared| bank(shared.weight)),
        how: StoreArg::from(combine.store),
        out: window(&combine.out),
        parts: narrow(parts),
        unused: 0,
    };
    let grid = [narrow(down.weight.rows.div_ceil(TILE)), narrow(rows), 1];
    let shape = Shape { grid, threads: narrow(32 * WARPS), shared: narrow(WARPS * RING) };
    cuda.launch_early("moe_down", "moe_down", shape, &mut one(arguments))?;
    if let (Some(rest), None) = (&op.shared, shared) {
        step.run(rest)?;
    }
    Ok(true)
}
