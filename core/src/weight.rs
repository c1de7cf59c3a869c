//! Weights: how a checkpoint stores them, where their bytes come from, and their form on a device.

use crate::backend::Backend;
use crate::error::{Error, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

/// How a weight matrix is stored. Back ends keep this form on the device: nothing is widened silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// E2M1 codes, two a byte (even column in the low nibble), an E4M3 scale for every 16 columns and an f32 scale.
    Nvfp4,
    /// E4M3 with one f32 scale for the matrix.
    Fp8,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::BF16, Self::Nvfp4, Self::Fp8];

    /// Lower-case name, as printed by `plan` and in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Nvfp4 => "nvfp4",
            Self::Fp8 => "fp8",
        }
    }

    /// Bytes of the element plane of a `[rows, cols]` matrix.
    pub const fn data_bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::F32 => rows * cols * 4,
            Self::F16 | Self::BF16 => rows * cols * 2,
            Self::Fp8 => rows * cols,
            Self::Nvfp4 => rows * (cols / 2),
        }
    }

    /// Bytes of the block-scale plane of a `[rows, cols]` matrix.
    pub const fn scale_bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::Nvfp4 => rows * (cols / NVFP4_GROUP),
            _ => 0,
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Columns that share one E4M3 scale in NVFP4.
pub const NVFP4_GROUP: usize = 16;

/// A future without a `Send` bound: one code path serves native drivers and the browser.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Where stored bytes come from: a memory-mapped file, ranged HTTP reads, generated data.
pub trait Source {
    /// Bytes `range` of file number `file`. A mapped file answers without a copy.
    ///
    /// # Errors
    /// The range lies outside the file, or it cannot be read.
    fn read(&self, file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>>;

    /// Says that `range` will not be read again: pages of a mapped file stop counting as this process's memory.
    fn forget(&self, file: usize, range: Range<u64>) {
        let _ = (file, range);
    }
}

/// A run of stored bytes.
#[derive(Clone)]
pub struct Plane {
    /// Where they are.
    pub source: Rc<dyn Source>,
    /// Which file of the source.
    pub file: usize,
    /// Which bytes of the file.
    pub range: Range<u64>,
}

impl Plane {
    /// A plane over bytes in memory.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let range = 0..bytes.len() as u64;
        Self { source: Rc::new(bytes), file: 0, range }
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As [`Source::forget`].
    pub fn forget(&self) {
        self.source.forget(self.file, self.range.clone());
    }

    /// All bytes.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub async fn all(&self) -> Result<Bytes> {
        self.source.read(self.file, self.range.clone()).await
    }

    /// Bytes `part` of the plane.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub async fn part(&self, part: Range<u64>) -> Result<Bytes> {
        let start = self.range.start;
        self.source.read(self.file, start + part.start..start + part.end).await
    }
}

impl Source for Bytes {
    fn read(&self, _file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        let outside = || Error::checkpoint(format!("bytes {range:?} of {} in memory", self.len()));
        let slice = usize::try_from(range.start)
            .ok()
            .zip(usize::try_from(range.end).ok())
            .filter(|&(start, end)| start <= end && end <= self.len())
            .map(|(start, end)| self.slice(start..end))
            .ok_or_else(outside);
        Box::pin(std::future::ready(slice))
    }
}

/// One matrix of a stored weight.
#[derive(Clone)]
pub struct StoredPart {
    /// Name of the tensor in the checkpoint.
    pub name: String,
    /// Elements or codes.
    pub data: Plane,
    /// Block scales, where the format has them.
    pub scales: Option<Plane>,
    /// Scale of the whole matrix; 1 where the format has none.
    pub scale: f32,
}

impl StoredPart {
    /// Elements and block scales.
    pub fn planes(&self) -> impl Iterator<Item = &Plane> {
        std::iter::once(&self.data).chain(&self.scales)
    }
}

/// A weight as the checkpoint holds it: one matrix, or one an expert, all of one format and shape.
#[derive(Clone)]
pub struct StoredWeight {
    /// Name for logs, errors and `plan`.
    pub name: String,
    /// Rows of one matrix (outputs).
    pub rows: usize,
    /// Columns of one matrix (inputs).
    pub cols: usize,
    /// How the elements are stored.
    pub format: Format,
    /// One entry for a plain weight, one an expert for a bank.
    pub parts: Vec<StoredPart>,
}

impl StoredWeight {
    /// Bytes that the weight needs, scales included.
    pub fn bytes(&self) -> u64 {
        let planes = |p: &StoredPart| p.data.len() + p.scales.as_ref().map_or(0, Plane::len);
        self.parts.iter().map(planes).sum()
    }
}

/// A weight on a device. Only its back end looks at the planes.
pub struct Weight<B: Backend> {
    /// Name for errors and traces.
    pub name: String,
    /// Rows of one matrix (outputs).
    pub rows: usize,
    /// Columns of one matrix (inputs).
    pub cols: usize,
    /// Matrices: 1 for a plain weight, the number of experts for a bank.
    pub experts: usize,
    /// How the elements are stored.
    pub format: Format,
    /// The back end's own layout.
    pub planes: Vec<B::Buffer>,
    /// Scale of each matrix as the checkpoint gives it.
    pub scales: Vec<f32>,
}
