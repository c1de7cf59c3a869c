//! The greedy token: a workgroup a row, or a part of a long row.

use super::attention::{PARTIALS, partials};
use crate::Wgpu;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Argmax;

/// Columns of a part.
const PART: usize = 2048;

fn kernel(entry: &'static str) -> Kernel {
    Kernel::new("argmax").entry(entry)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    ["main", "join"].map(kernel).into()
}

pub(crate) fn encode(gpu: &Wgpu, op: &Argmax<Wgpu>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    let parts = cols.div_ceil(PART);
    let call = Call::new(kernel("main")).input(&op.x);
    if parts == 1 || (rows * parts * 8) as u64 > PARTIALS {
        return gpu.dispatch(call.output(&op.out).sizes([rows, cols, 1, cols]), rows);
    }
    let found = partials(gpu)?;
    // The parts have no window of their own.
    let call = call.whole(found, true).sizes([0, 0]).sizes([rows, cols, parts, PART]);
    gpu.dispatch(call, rows * parts)?;
    let join = Call::new(kernel("join")).whole(found, false).sizes([0, 0]).output(&op.out);
    gpu.dispatch(join.sizes([rows, cols, parts, PART]), rows)
}
