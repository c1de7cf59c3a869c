//! Candidates for sampling: a workgroup a row, or a part of a long row whose candidates a second dispatch joins.

use crate::Wgpu;
use crate::buffer::WORKSPACE;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::TopK;

/// Columns of a part.
const PART: usize = 4096;

/// Of a whole row, of a part, and what joins parts.
const ROW: u32 = 0;
const LEAVE: u32 = 1;
const JOIN: u32 = 2;

fn kernel(part: u32) -> Kernel {
    Kernel::new("top_k").with("PART", part)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    [ROW, LEAVE, JOIN].map(kernel).into()
}

pub(crate) fn encode(gpu: &Wgpu, op: &TopK<Wgpu>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    let k = op.values.cols();
    let parts = cols.div_ceil(PART);
    let sizes = |cols, parts, width| [rows, cols, k, k.next_power_of_two(), parts, width];
    let out = |call: Call| call.output(&op.values).output(&op.indices);
    // A join reads fewer columns than the row has, or it would gain nothing.
    if parts == 1 || parts * k * 2 > cols || (rows * parts * k * 8) as u64 > WORKSPACE {
        let call = out(Call::new(kernel(ROW)).input(&op.x)).sizes(sizes(cols, 1, cols));
        return gpu.dispatch(call, rows);
    }
    let found = gpu.workspace()?;
    // What parts leave has no window of its own.
    let leave = Call::new(kernel(LEAVE)).input(&op.x).output(&op.values);
    let leave = leave.whole(found, true).sizes([0, 0]).sizes(sizes(cols, parts, PART));
    gpu.dispatch(leave, rows * parts)?;
    let join = out(Call::new(kernel(JOIN)).whole(found, false).sizes([0, 0]));
    gpu.dispatch(join.sizes(sizes(parts * k, 1, parts * k)), rows)
}
