//! Attention over the cache.

use super::one;
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::{Window, narrow, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Attention;

/// Twin of `Heads` in `kernels/attention.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Heads {
    q: Window,
    k: Window,
    v: Window,
    out: Window,
    places: u64,
    context: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    scale: f32,
    rows: u32,
}

/// Warps of a block of the plain form, a head each.
const WARPS: u32 = 4;

pub(crate) fn attention(cuda: &Cuda, op: &Attention<Cuda>) -> Result<()> {
    let heads = Heads {
        q: window(&op.q),
        k: window(&op.cache.k),
        v: window(&op.cache.v),
        out: window(&op.out),
        places: pointer(&op.segments.places),
        context: narrow(op.cache.context),
        heads: narrow(op.heads()),
        kv_heads: narrow(op.kv_heads()),
        head_dim: narrow(op.head_dim),
        scale: op.scale,
        rows: narrow(op.q.rows()),
    };
    let grid = [heads.rows, heads.heads.div_ceil(WARPS), 1];
    cuda.launch("attention", "attention_plain", Shape { grid, threads: 32 * WARPS, shared: 0 }, &mut one(heads))
}
