//! Host memory behind tensors, and the dense views that the references are written on.

use super::Cpu;
use crate::backend::{Ledger, Memory};
use crate::batch::{Segment, Segments, to_usize};
use crate::quant::{e4m3_to_f32, f32_to_e4m3};
use crate::tensor::{DType, Tensor};
use bytes::Bytes;
use half::{bf16, f16};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Memory of the CPU back end; clones share it.
#[derive(Clone)]
pub enum CpuBuffer {
    /// Read and written by ops.
    Host(Rc<HostMemory>),
    /// Stored weight bytes, as they lie in the checkpoint.
    Stored(Bytes),
}

/// Zeroed words that ops read and write; counted in the ledger while it lives.
pub struct HostMemory {
    words: RwLock<Vec<u32>>,
    class: Memory,
    ledger: Rc<RefCell<Ledger>>,
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let bytes = self.words.get_mut().map_or(0, |w| w.len() * 4);
        *self.ledger.borrow_mut().of(self.class) -= bytes as u64;
    }
}

impl CpuBuffer {
    pub(super) fn host(bytes: usize, class: Memory, ledger: &Rc<RefCell<Ledger>>) -> Self {
        let words = vec![0u32; bytes.div_ceil(4)];
        *ledger.borrow_mut().of(class) += words.len() as u64 * 4;
        Self::Host(Rc::new(HostMemory { words: RwLock::new(words), class, ledger: ledger.clone() }))
    }

    pub(super) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Host(a), Self::Host(b)) => Rc::ptr_eq(a, b),
            (Self::Stored(a), Self::Stored(b)) => a.as_ptr() == b.as_ptr(),
            _ => false,
        }
    }

    /// The words, for reading. Locks are never held across ops, so they are never contended or poisoned.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Vec<u32>> {
        match self {
            Self::Host(memory) => {
                memory.words.read().expect("an op does not panic while it holds a buffer")
            }
            Self::Stored(_) => panic!("a tensor never looks at stored weight bytes"),
        }
    }

    /// The words, for writing.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Vec<u32>> {
        match self {
            Self::Host(memory) => {
                memory.words.write().expect("an op does not panic while it holds a buffer")
            }
            Self::Stored(_) => panic!("a tensor never looks at stored weight bytes"),
        }
    }

    /// Stored weight bytes.
    pub(super) fn stored(&self) -> &[u8] {
        match self {
            Self::Stored(bytes) => bytes,
            Self::Host(_) => panic!("a weight's plane is stored bytes"),
        }
    }
}

/// A segment as the references walk it.
#[derive(Clone, Copy)]
pub(crate) struct SegmentView {
    /// First row of the batch.
    pub first_row: usize,
    /// Number of rows.
    pub len: usize,
    /// State slot.
    pub slot: usize,
    /// Position of the first row.
    pub position: usize,
}

impl SegmentView {
    /// Whether the slot holds nothing of this sequence.
    pub fn fresh(&self) -> bool {
        self.position == 0
    }

    /// The rows of the batch.
    pub fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.len
    }
}

impl Segments<Cpu> {
    /// The entries that are not padding.
    pub(crate) fn list(&self) -> Vec<SegmentView> {
        let words = self.table.dense_u32();
        let entries: &[Segment] = bytemuck::cast_slice(&words);
        let view = |s: &Segment| SegmentView {
            first_row: to_usize(s.first_row),
            len: to_usize(s.len),
            slot: to_usize(s.slot),
            position: to_usize(s.position),
        };
        entries.iter().map(view).filter(|s| s.len > 0).collect()
    }
}

impl Tensor<Cpu> {
    /// Byte range of row `row` in the buffer.
    fn row_bytes(&self, row: usize) -> Range<usize> {
        let size = self.dtype().bytes();
        let start = (self.offset() + row * self.stride()) * size;
        start..start + self.cols() * size
    }

    /// The window as dense bytes.
    pub(super) fn read_bytes(&self) -> Vec<u8> {
        let words = self.buffer().read();
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        let mut dense = Vec::with_capacity(self.rows() * self.cols() * self.dtype().bytes());
        (0..self.rows()).for_each(|row| dense.extend_from_slice(&bytes[self.row_bytes(row)]));
        dense
    }

    /// Overwrites the window with dense bytes.
    pub(super) fn write_bytes(&self, dense: &[u8]) {
        let mut words = self.buffer().write();
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let width = self.cols() * self.dtype().bytes();
        for row in 0..self.rows() {
            bytes[self.row_bytes(row)].copy_from_slice(&dense[row * width..][..width]);
        }
    }

    /// The window's values, rows dense, widened to f32.
    pub(crate) fn dense(&self) -> Vec<f32> {
        let bytes = self.read_bytes();
        widen(&bytes, self.dtype())
    }

    /// A u32 window's values, rows dense.
    pub(crate) fn dense_u32(&self) -> Vec<u32> {
        bytemuck::pod_collect_to_vec(&self.read_bytes())
    }

    /// Overwrites the window with dense values, rounded to its dtype.
    pub(crate) fn fill(&self, values: &[f32]) {
        self.write_bytes(&narrow(values, self.dtype()));
    }

    /// Overwrites a u32 window with dense values.
    pub(crate) fn fill_u32(&self, values: &[u32]) {
        self.write_bytes(bytemuck::cast_slice(values));
    }
}

/// Stored elements as f32.
pub(crate) fn widen(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let pairs = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match dtype {
        DType::F32 => bytemuck::pod_collect_to_vec(bytes),
        DType::BF16 => pairs().map(|b| bf16::from_bits(b).to_f32()).collect(),
        DType::F16 => pairs().map(|b| f16::from_bits(b).to_f32()).collect(),
        DType::F8E4M3 => bytes.iter().map(|&b| e4m3_to_f32(b)).collect(),
        DType::U32 => panic!("u32 tables are read as u32"),
    }
}

/// f32 values as stored elements, rounded to nearest even.
pub(crate) fn narrow(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => bytemuck::cast_slice(values).to_vec(),
        DType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::F8E4M3 => values.iter().map(|&v| f32_to_e4m3(v)).collect(),
        DType::U32 => panic!("u32 tables are written as u32"),
    }
}

/// Rows of an f32 window, read in place.
pub(super) struct Rows<'a> {
    words: RwLockReadGuard<'a, Vec<u32>>,
    offset: usize,
    stride: usize,
    cols: usize,
}

impl Rows<'_> {
    /// One row.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        bytemuck::cast_slice(&self.words[self.offset + row * self.stride..][..self.cols])
    }

    /// The first `rows` rows of a dense window as one slice.
    pub(super) fn all(&self, rows: usize) -> &[f32] {
        bytemuck::cast_slice(&self.words[self.offset..][..rows * self.cols])
    }
}

/// Rows of an f32 window, written in place.
pub(super) struct RowsMut<'a> {
    words: RwLockWriteGuard<'a, Vec<u32>>,
    offset: usize,
    stride: usize,
    rows: usize,
    cols: usize,
}

impl RowsMut<'_> {
    /// One row.
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.words[self.offset + row * self.stride..][..self.cols])
    }

    /// All rows in order, to be written in parallel.
    pub(super) fn rows(&mut self) -> impl Iterator<Item = &mut [f32]> {
        // Windows of no rows or columns may begin at the end of the buffer.
        let empty = self.rows == 0 || self.cols == 0;
        let words = if empty { &mut [] } else { &mut self.words[self.offset..] };
        let cols = self.cols;
        words
            .chunks_mut(self.stride.max(1))
            .take(self.rows)
            .map(move |row| bytemuck::cast_slice_mut(&mut row[..cols]))
    }

    /// A dense window as one slice.
    pub(super) fn all(&mut self) -> &mut [f32] {
        let count = self.rows * self.cols;
        bytemuck::cast_slice_mut(&mut self.words[self.offset..][..count])
    }
}

impl Tensor<Cpu> {
    /// The rows of an f32 window; the faster forms leave other dtypes to the definitions.
    pub(super) fn f32_rows(&self) -> Option<Rows<'_>> {
        (self.dtype() == DType::F32).then(|| Rows {
            words: self.buffer().read(),
            offset: self.offset(),
            stride: self.stride(),
            cols: self.cols(),
        })
    }

    /// As [`Tensor::f32_rows`], for writing.
    pub(super) fn f32_rows_mut(&self) -> Option<RowsMut<'_>> {
        (self.dtype() == DType::F32).then(|| RowsMut {
            words: self.buffer().write(),
            offset: self.offset(),
            stride: self.stride(),
            rows: self.rows(),
            cols: self.cols(),
        })
    }
}
