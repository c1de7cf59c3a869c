//! The header of a safetensors file: untrusted, so every length and offset is checked before it is used.
//!
//! The `safetensors` crate checks the same rules but wants the whole file in memory and offsets that fit `usize`; this
//! reader works from the first bytes of a file of any size, on 32-bit targets too, and names the tensor at fault. A
//! property test holds it to the crate: what it accepts, the crate accepts with the same tensors.

use crate::error::{Error, Result};
use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Longest header that is read, the limit of the format.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the length before the header.
pub const LENGTH_BYTES: u64 = 8;
const MAX_DIMENSIONS: usize = 8;

/// One tensor as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Its dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the start of the file.
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Number of elements; the header was checked for a product that does not overflow.
    pub fn elements(&self) -> u64 {
        // Lossless on every target there is.
        self.shape.iter().map(|&d| d as u64).product()
    }
}

/// Dtype and shape, as errors print them.
impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}

/// The checked header of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors by name.
    pub tensors: BTreeMap<String, TensorInfo>,
}

impl Header {
    /// How many bytes of a file of `file_bytes` bytes hold its header, from the file's first bytes (8 suffice).
    ///
    /// # Errors
    /// The file is empty, truncated, or no safetensors file.
    pub fn bytes_needed(first: &[u8], file_bytes: u64) -> Result<u64> {
        if file_bytes == 0 {
            return Err(Error::checkpoint("the file is empty; download it again"));
        }
        let pointer = b"version https://git-lfs";
        if first.starts_with(&pointer[..first.len().min(pointer.len()).max(8)]) {
            return Err(Error::checkpoint(
                "a Git LFS pointer, not the file itself; run `git lfs pull` in its folder",
            ));
        }
        let length = first.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)).ok_or_else(|| {
            Error::checkpoint(format!(
                "{file_bytes} bytes are too few for a safetensors file; download it again"
            ))
        })?;
        if length > MAX_HEADER_BYTES {
            return Err(Error::checkpoint(format!(
                "the header claims {length} bytes, the format allows {MAX_HEADER_BYTES}; this is no safetensors file or a damaged one"
            )));
        }
        match LENGTH_BYTES + length {
            end if end > file_bytes => Err(Error::checkpoint(format!(
                "the header claims {length} bytes, the file has {file_bytes}; it is truncated, download it again"
            ))),
            end => Ok(end),
        }
    }

    /// Reads the header from the first bytes of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// As [`Header::bytes_needed`]; also when the tensors do not cover the rest of the file exactly.
    pub fn parse(first: &[u8], file_bytes: u64) -> Result<Self> {
        let end = Self::bytes_needed(first, file_bytes)?;
        let json =
            usize::try_from(end).ok().and_then(|end| first.get(8..end)).ok_or_else(|| {
                Error::checkpoint(format!("{} bytes given, the header needs {end}", first.len()))
            })?;
        let raw: RawHeader = serde_json::from_slice(json)
            .map_err(|e| Error::checkpoint(format!("the header is not valid: {e}")))?;
        check(raw.tensors, end, file_bytes)
    }
}

/// Turns offsets after the header into offsets in the file, refusing overlaps, holes and sizes that do not fit.
fn check(mut raw: Vec<(String, RawTensor)>, start: u64, file_bytes: u64) -> Result<Header> {
    raw.sort_by(|a, b| (a.1.data_offsets, &a.0).cmp(&(b.1.data_offsets, &b.0)));
    let mut tensors = BTreeMap::new();
    let mut next = 0;
    for (name, RawTensor { dtype, shape, data_offsets: (begin, end) }) in raw {
        let refuse = |text: String| Error::checkpoint(format!("tensor `{name}`: {text}"));
        let bytes = size(dtype, &shape)
            .ok_or_else(|| refuse(format!("{dtype} {shape:?} is no size in whole bytes")))?;
        if end.checked_sub(begin) != Some(bytes) {
            return Err(refuse(format!(
                "bytes {begin} to {end}, but {dtype} {shape:?} takes {bytes}"
            )));
        }
        if begin != next {
            return Err(refuse(format!(
                "begins at byte {begin} of the data, want {next}: tensors neither overlap nor leave holes"
            )));
        }
        next = end;
        let range = start.saturating_add(begin)..start.saturating_add(end);
        let shape = shape.into_iter().map(usize::try_from).collect::<std::result::Result<_, _>>();
        let shape =
            shape.map_err(|_| refuse("a dimension is too large for this machine".into()))?;
        if tensors.insert(name.clone(), TensorInfo { dtype, shape, range }).is_some() {
            return Err(Error::checkpoint(format!("tensor `{name}`: described twice")));
        }
    }
    let have = file_bytes - start;
    if next > have {
        return Err(Error::checkpoint(format!(
            "the tensors take {next} bytes, the file has {have} after its header; it is truncated, download it again"
        )));
    }
    if next < have {
        return Err(Error::checkpoint(format!(
            "the tensors take {next} bytes, the file has {have} after its header; what follows them is unknown"
        )));
    }
    Ok(Header { tensors })
}

fn size(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    let bits = elements.checked_mul(u64::try_from(dtype.bitsize()).ok()?)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

struct RawTensor {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            dtype: Dtype,
            shape: Vec<u64>,
            data_offsets: (u64, u64),
        }
        let Fields { dtype, shape, data_offsets } = Fields::deserialize(deserializer)?;
        if shape.len() > MAX_DIMENSIONS {
            let text = format!("{} dimensions, at most {MAX_DIMENSIONS}", shape.len());
            return Err(serde::de::Error::custom(text));
        }
        Ok(Self { dtype, shape, data_offsets })
    }
}

struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<RawHeader, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let tensor = map
                        .next_value()
                        .map_err(|e| serde::de::Error::custom(format!("tensor `{name}`: {e}")))?;
                    tensors.push((name, tensor));
                }
                Ok(RawHeader { tensors })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
