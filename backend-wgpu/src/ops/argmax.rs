//! The greedy token: a workgroup a row, or a part of a long row; without barriers an invocation a part.

use crate::Wgpu;
use crate::buffer::WORKSPACE;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Argmax;

/// Columns of a part.
const PART: usize = 2048;

/// Columns of a part that one invocation reads, and invocations of a workgroup.
const THREAD_PART: usize = 64;
const THREADS: usize = 8;

fn kernel(entry: &'static str) -> Kernel {
    Kernel::new("argmax").entry(entry)
}

fn thread_kernel(entry: &'static str) -> Kernel {
    Kernel::new("argmax_thread").entry(entry)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let entries = ["main", "join"];
    entries.into_iter().flat_map(|entry| [kernel(entry), thread_kernel(entry)]).collect()
}

pub(crate) fn encode(gpu: &Wgpu, op: &Argmax<Wgpu>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    if gpu.variants.barrier_free() && found_fits(rows, cols.div_ceil(THREAD_PART)) {
        return by_thread(gpu, op);
    }
    let parts = cols.div_ceil(PART);
    let call = Call::new(kernel("main")).input(&op.x);
    if parts == 1 || !found_fits(rows, parts) {
        return gpu.dispatch(call.output(&op.out).sizes([rows, cols, 1, cols]), rows);
    }
    let found = gpu.workspace()?;
    // The parts have no window of their own.
    let call = call.whole(found, true).sizes([0, 0]).sizes([rows, cols, parts, PART]);
    gpu.dispatch(call, rows * parts)?;
    let join = Call::new(kernel("join")).whole(found, false).sizes([0, 0]).output(&op.out);
    gpu.dispatch(join.sizes([rows, cols, parts, PART]), rows)
}

/// Whether what the parts find fits the workspace.
fn found_fits(rows: usize, parts: usize) -> bool {
    (rows * parts * 8) as u64 <= WORKSPACE
}

fn by_thread(gpu: &Wgpu, op: &Argmax<Wgpu>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    let parts = cols.div_ceil(THREAD_PART);
    let found = gpu.workspace()?;
    // The parts have no window of their own.
    let call = Call::new(thread_kernel("main")).input(&op.x).whole(found, true).sizes([0, 0]);
    gpu.dispatch(call.sizes([rows, cols, parts, THREAD_PART]), (rows * parts).div_ceil(THREADS))?;
    let join = Call::new(thread_kernel("join")).whole(found, false).sizes([0, 0]).output(&op.out);
    gpu.dispatch(join.sizes([rows, cols, parts, THREAD_PART]), rows.div_ceil(THREADS))
}
