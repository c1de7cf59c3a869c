//! `state[to] = state[from]`: by words, or by elements where slots share words.

use super::{cache_number, pointwise};
use crate::Wgpu;
use crate::call::{Call, residue};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::CopySlot;

fn kernel(entry: &'static str, per_word: usize) -> Kernel {
    // At most 4.
    Kernel::new("copy_slot").entry(entry).with("PER", per_word as u32)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    vec![kernel("main", 1), kernel("ragged", 2), kernel("ragged", 4)]
}

pub(crate) fn encode(gpu: &Wgpu, op: &CopySlot<Wgpu>) -> Result<()> {
    let state = &op.state;
    let (_, per_word) = cache_number(state.dtype());
    let slot = |slot: usize| residue(state) + slot * op.rows_per_slot * state.stride();
    let places = [state.cols(), state.stride(), slot(op.from), slot(op.to)];
    let whole = places.iter().all(|n| n.is_multiple_of(per_word));
    let (kernel, unit) =
        if whole { (kernel("main", 1), per_word) } else { (kernel("ragged", per_word), 1) };
    let [width, stride, source, destination] = places.map(|n| n / unit);
    let mut call = Call::new(kernel).output(state);
    // Places of the slots stand for the window.
    call.params.clear();
    let call = call.sizes([op.rows, width, stride, source, destination]);
    gpu.dispatch(call, pointwise(op.rows, width))
}
