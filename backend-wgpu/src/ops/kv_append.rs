//! New keys and values into the cache, a word an invocation.

use super::{CACHES, cache_number, pointwise};
use crate::Wgpu;
use crate::call::{Call, residue, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::KvAppend;
use whipsnake_core::tensor::DType;

fn kernel(dtype: DType) -> Kernel {
    let (number, per_word) = cache_number(dtype);
    // At most 4.
    Kernel::new("kv_append").with("FORMAT", number).with("PER", per_word as u32)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    CACHES.map(kernel).into()
}

pub(crate) fn encode(gpu: &Wgpu, op: &KvAppend<Wgpu>) -> Result<()> {
    want_f32("kv_append", &[&op.k, &op.v])?;
    let [rows, cols] = op.k.shape();
    let (_, per_word) = cache_number(op.cache.k.dtype());
    for cache in [&op.cache.k, &op.cache.v] {
        let parts = [cols, cache.stride(), residue(cache)];
        if parts.iter().any(|n| n % per_word != 0) || cache.dtype() != op.cache.k.dtype() {
            return Err(Error::op(
                "kv_append",
                format!(
                    "rows of {cols} {} are not whole words of {per_word} elements",
                    cache.dtype()
                ),
            ));
        }
    }
    let words = cols / per_word;
    let call = Call::new(kernel(op.cache.k.dtype()))
        .input(&op.k)
        .input(&op.v)
        .input(&op.segments.places)
        .output(&op.cache.k)
        .output(&op.cache.v)
        .sizes([rows, words, op.cache.context]);
    gpu.dispatch(call, pointwise(rows, words))
}
