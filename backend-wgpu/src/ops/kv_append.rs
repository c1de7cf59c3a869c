//! New keys and values into the cache: by words, or by elements where rows share words.

use super::{CACHES, cache_number, pointwise};
use crate::Wgpu;
use crate::call::{Call, residue, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::KvAppend;
use whipsnake_core::tensor::DType;

fn kernel(dtype: DType, whole_words: bool) -> Kernel {
    let (number, per_word) = cache_number(dtype);
    // At most 4.
    let entry = if whole_words { "main" } else { "ragged" };
    Kernel::new("kv_append").entry(entry).with("FORMAT", number).with("PER", per_word as u32)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let narrow = CACHES.into_iter().filter(|dtype| dtype.bytes() < 4);
    let ragged = narrow.map(|dtype| kernel(dtype, false));
    CACHES.into_iter().map(|dtype| kernel(dtype, true)).chain(ragged).collect()
}

pub(crate) fn encode(gpu: &Wgpu, op: &KvAppend<Wgpu>) -> Result<()> {
    want_f32("kv_append", &[&op.k, &op.v])?;
    let [rows, cols] = op.k.shape();
    let caches = [&op.cache.k, &op.cache.v];
    let dtype = op.cache.k.dtype();
    if op.cache.v.dtype() != dtype {
        return Err(Error::op("kv_append", "the caches of keys and values differ in dtype"));
    }
    let (_, per_word) = cache_number(dtype);
    let whole = |n: usize| n.is_multiple_of(per_word);
    let whole_words = whole(cols) && caches.iter().all(|c| whole(c.stride()) && whole(residue(c)));
    let items = if whole_words { cols / per_word } else { cols };
    let call = Call::new(kernel(dtype, whole_words))
        .input(&op.k)
        .input(&op.v)
        .input(&op.segments.places)
        .output(&op.cache.k)
        .output(&op.cache.v)
        .sizes([rows, items, op.cache.context]);
    gpu.dispatch(call, pointwise(rows, items))
}
