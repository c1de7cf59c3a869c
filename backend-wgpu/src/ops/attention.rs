//! Attention over the cache: a workgroup some query heads of a key head, the context in parts where those are few;
//! without barriers an invocation a head of a row.

use super::{CACHES, cache_number};
use crate::Wgpu;
use crate::buffer::WORKSPACE;
use crate::call::{Call, in_fours, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::Attention;
use whipsnake_core::tensor::DType;

/// Workgroups that keep a device busy; with fewer, the context is split.
const BUSY: usize = 512;
/// Rows of a tile, and the rows of a segment from which tiles pay.
const TILE: usize = 16;
/// Widest head whose tile fits workgroup memory.
const TILE_HEAD: usize = 128;
/// Positions of a part, at least.
const PART: usize = 32;

/// Query heads of a workgroup: what fits 16 KiB of workgroup memory with as many positions as an invocation each scores.
const fn block_heads(head_dim: usize) -> usize {
    if head_dim <= 128 { 8 } else { 4 }
}

fn kernel(dtype: DType, head_dim: usize, split: bool) -> Kernel {
    let (number, per_word) = cache_number(dtype);
    let positions = if head_dim <= 128 { 16 } else { 8 };
    // All are at most 16.
    Kernel::new("attention")
        .with("FORMAT", number)
        .with("PER", per_word as u32)
        .with("FOURTHS", head_dim.div_ceil(64) as u32)
        .with("HEADS", block_heads(head_dim) as u32)
        .with("POSITIONS", positions)
        .with("SPLIT", u32::from(split))
}

fn tile_kernel(dtype: DType, head_dim: usize) -> Kernel {
    let (number, per_word) = cache_number(dtype);
    // All are at most 4.
    Kernel::new("attention_tile")
        .with("FORMAT", number)
        .with("PER", per_word as u32)
        .with("CHUNKS", head_dim.div_ceil(64) as u32)
}

/// Invocations that keep a software adapter busy, and those of a workgroup of the form without barriers.
const THREADS_BUSY: usize = 32;
const THREADS: usize = 8;
/// Positions of a part that one invocation reads, at least: a second kernel has to be worth its compiling.
const THREAD_PART: usize = 128;
/// Widest head that an invocation keeps in registers.
const THREAD_HEAD: usize = 64;

fn thread_kernel(head_dim: usize, split: bool) -> Kernel {
    // At most 16.
    let fours = (head_dim / 4) as u32;
    Kernel::new("attention_thread").with("FOURS", fours).with("SPLIT", u32::from(split))
}

fn combine_kernel() -> Kernel {
    Kernel::new("attention_combine")
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let mut list = vec![combine_kernel()];
    for head_dim in [4, 20, 64] {
        list.extend([false, true].map(|split| thread_kernel(head_dim, split)));
    }
    for dtype in CACHES {
        for head_dim in [64, 128, 256] {
            list.extend([false, true].map(|split| kernel(dtype, head_dim, split)));
        }
        list.extend([64, 128].map(|head_dim| tile_kernel(dtype, head_dim)));
    }
    list
}

pub(crate) fn encode(gpu: &Wgpu, op: &Attention<Wgpu>) -> Result<()> {
    want_f32("attention", &[&op.q, &op.out])?;
    let dtype = op.cache.k.dtype();
    if op.cache.v.dtype() != dtype {
        return Err(Error::op("attention", "the caches of keys and values differ in dtype"));
    }
    let caches = [&op.cache.k, &op.cache.v];
    let in_registers = op.head_dim <= THREAD_HEAD && op.head_dim.is_multiple_of(4);
    let fours = dtype == DType::F32 && in_fours(&op.q) && caches.into_iter().all(in_fours);
    if gpu.variants.barrier_free() && in_registers && fours {
        return by_thread(gpu, op);
    }
    if op.segments.shape.longest >= TILE && op.head_dim <= TILE_HEAD {
        return by_tile(gpu, op);
    }
    let (rows, heads) = (op.q.rows(), op.heads());
    let group = heads / op.kv_heads();
    let blocks = group.div_ceil(block_heads(op.head_dim));
    let groups = rows * op.kv_heads() * blocks;
    let parts = parts(BUSY / groups.max(1), op);
    let call = bind(gpu, kernel(dtype, op.head_dim, parts > 1), op, parts)?
        .sizes([rows, heads, group, op.head_dim, op.cache.context, parts, blocks])
        .floats([op.scale]);
    gpu.dispatch(call, groups * parts)?;
    combine(gpu, op, parts)
}

/// The bindings of a kernel that may leave parts.
fn bind(gpu: &Wgpu, kernel: Kernel, op: &Attention<Wgpu>, parts: usize) -> Result<Call> {
    let call = Call::new(kernel).input(&op.q).input(&op.cache.k).input(&op.cache.v);
    let call = call.input(&op.segments.places);
    Ok(match parts {
        1 => call.output(&op.out),
        // The parts have no window of their own.
        _ => call.whole(gpu.workspace()?, true).sizes([0, 0]),
    })
}

/// Joins parts where there are several.
fn combine(gpu: &Wgpu, op: &Attention<Wgpu>, parts: usize) -> Result<()> {
    if parts == 1 {
        return Ok(());
    }
    let (rows, heads) = (op.q.rows(), op.heads());
    let mut combine = Call::new(combine_kernel()).whole(gpu.workspace()?, false);
    combine = combine.input(&op.segments.places).output(&op.out);
    combine = combine.sizes([rows, heads, op.head_dim, parts]);
    gpu.dispatch(combine, (rows * heads * op.head_dim).div_ceil(64))
}

/// Without barriers: an invocation a (row, head, part).
fn by_thread(gpu: &Wgpu, op: &Attention<Wgpu>) -> Result<()> {
    let (rows, heads) = (op.q.rows(), op.heads());
    let most = op.segments.shape.context / THREAD_PART;
    let parts = parts(most.min(THREADS_BUSY / (rows * heads).max(1)), op);
    let call = bind(gpu, thread_kernel(op.head_dim, parts > 1), op, parts)?
        .sizes([rows, heads, heads / op.kv_heads(), op.cache.context, parts])
        .floats([op.scale]);
    gpu.dispatch(call, (rows * heads * parts).div_ceil(THREADS))?;
    combine(gpu, op, parts)
}

/// Many rows of a segment share its keys and values.
fn by_tile(gpu: &Wgpu, op: &Attention<Wgpu>) -> Result<()> {
    let (segments, heads) = (op.segments.table.rows(), op.heads());
    let tiles = op.segments.shape.longest.div_ceil(TILE);
    let call = Call::new(tile_kernel(op.cache.k.dtype(), op.head_dim))
        .input(&op.q)
        .input(&op.cache.k)
        .input(&op.cache.v)
        .input(&op.segments.table)
        .output(&op.out)
        .sizes([segments, heads, heads / op.kv_heads(), op.head_dim, op.cache.context, tiles])
        .floats([op.scale]);
    gpu.dispatch(call, segments * tiles * heads)
}

/// Parts of the context: as many as are wanted to keep the device busy, within the scratch memory.
fn parts(wanted: usize, op: &Attention<Wgpu>) -> usize {
    let pairs = op.q.rows() * op.heads();
    parts_of(wanted, pairs, op.segments.shape.context, op.head_dim)
}

fn parts_of(wanted: usize, pairs: usize, context: usize, head_dim: usize) -> usize {
    // 4 MiB fit usize.
    let room = WORKSPACE as usize / (4 * pairs.max(1) * (head_dim + 2));
    wanted.min(context / PART).min(room).max(1)
}

#[cfg(test)]
mod tests {
    use super::{BUSY, WORKSPACE, parts_of};

    #[test]
    fn parts_fit_the_scratch_memory() {
        for pairs in [1usize, 2, 32, 64, 200, 4096] {
            for context in [1, 255, 512, 32768, 1 << 20] {
                for head_dim in [1, 64, 128, 256] {
                    let parts = parts_of(BUSY / pairs.div_ceil(8), pairs, context, head_dim);
                    assert!(parts >= 1);
                    let bytes = pairs * parts * (head_dim + 2) * 4;
                    assert!(
                        parts == 1 || bytes as u64 <= WORKSPACE,
                        "{pairs} {context} {head_dim}"
                    );
                }
            }
        }
    }
}
