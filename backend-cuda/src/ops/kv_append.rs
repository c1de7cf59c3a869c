//! Appends keys and values to their caches.

use super::{THREADS, line};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::view::{narrow, pointer, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::KvAppend;

pub(crate) fn kv_append(cuda: &Cuda, op: &KvAppend<Cuda>) -> Result<()> {
    let mut args = Args::new();
    args.push(window(&op.k))
        .push(window(&op.v))
        .push(window(&op.cache.k))
        .push(window(&op.cache.v));
    args.push(narrow(op.cache.context)).push(pointer(&op.segments.places));
    cuda.launch_early("kv_append", "kv_append", line(op.k.rows(), THREADS), &mut args)
}
