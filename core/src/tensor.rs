//! A window of a device buffer: row-major, with a row stride and a dtype.

use crate::backend::Backend;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How one element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// Token ids, expert ids, segment tables.
    U32,
    /// OCP E4M3 (finite, NaN only), for key/value caches.
    F8E4M3,
}

impl DType {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::F8E4M3 => 1,
        }
    }

    /// Lower-case name, as printed by `plan` and in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
            Self::F8E4M3 => "f8e4m3",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A row-major `[rows, cols]` window of a buffer of back end `B`.
///
/// Clones share the buffer. `stride` counts elements from one row to the next. A window may start at any element:
/// a back end whose bindings must be aligned binds from an aligned place before it and passes the rest as a number.
pub struct Tensor<B: Backend> {
    buffer: B::Buffer,
    rows: usize,
    cols: usize,
    stride: usize,
    offset: usize,
    dtype: DType,
}

impl<B: Backend> Clone for Tensor<B> {
    fn clone(&self) -> Self {
        Self { buffer: self.buffer.clone(), ..*self }
    }
}

impl<B: Backend> Tensor<B> {
    /// The whole of `buffer`, dense.
    pub fn new(buffer: B::Buffer, rows: usize, cols: usize, dtype: DType) -> Self {
        Self { buffer, rows, cols, stride: cols, offset: 0, dtype }
    }

    /// The buffer that the window looks at.
    pub fn buffer(&self) -> &B::Buffer {
        &self.buffer
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Elements before the first one of the window.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes before the first element of the window.
    pub fn offset_bytes(&self) -> usize {
        self.offset * self.dtype.bytes()
    }

    /// How an element is stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Whether row follows row without a gap.
    pub fn is_dense(&self) -> bool {
        self.rows <= 1 || self.stride == self.cols
    }

    /// Bytes from the first element to the end of the last one.
    pub fn span_bytes(&self) -> usize {
        match self.rows {
            0 => 0,
            rows => ((rows - 1) * self.stride + self.cols) * self.dtype.bytes(),
        }
    }

    /// Columns `start..start + cols` of the window.
    ///
    /// # Panics
    /// If they lie outside it: the caller's bug.
    #[must_use]
    pub fn columns(&self, start: usize, cols: usize) -> Self {
        assert!(start + cols <= self.cols, "columns {start}+{cols} of {}", self.cols);
        Self { cols, offset: self.offset + start, ..self.clone() }
    }

    /// Rows `start..start + rows` of the window.
    ///
    /// # Panics
    /// If they lie outside it: the caller's bug.
    #[must_use]
    pub fn row_range(&self, start: usize, rows: usize) -> Self {
        assert!(start + rows <= self.rows, "rows {start}+{rows} of {}", self.rows);
        Self { rows, offset: self.offset + start * self.stride, ..self.clone() }
    }

    /// The first `rows` rows.
    #[must_use]
    pub fn first_rows(&self, rows: usize) -> Self {
        self.row_range(0, rows)
    }

    /// A dense window read with another shape of as many elements.
    ///
    /// # Panics
    /// If the window is not dense or the counts differ: the caller's bug.
    #[must_use]
    pub fn reshaped(&self, rows: usize, cols: usize) -> Self {
        assert!(self.is_dense() && rows * cols == self.rows * self.cols, "reshape of {self:?}");
        Self { rows, cols, stride: cols, ..self.clone() }
    }
}

impl<B: Backend> fmt::Debug for Tensor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}] {}", self.rows, self.cols, self.dtype)
    }
}
