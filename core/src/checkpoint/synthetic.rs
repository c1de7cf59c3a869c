//! Generated weights: valid bytes for any geometry, the same for the same name and seed, made as they are read.
//!
//! Values are drawn so that activations stay of order 1 through any depth: matrices have standard deviation
//! `1 / sqrt(columns)`, norms lie near 1, `A_log` and `dt_bias` in the ranges that training starts from.

use super::geometry::IndexEntry;
use crate::error::{Error, Result};
use crate::quant::{E2M1, e4m3_to_f32, f32_to_e4m3};
use crate::weight::{LocalFuture, Source};
use bytes::Bytes;
use half::{bf16, f16};
use safetensors::Dtype;
use std::ops::Range;
use std::sync::LazyLock;

/// Entries of a table of values; a power of two below 2^16.
const TABLE: usize = 4096;
/// Bytes that one random stream makes; reads begin at any byte.
const BLOCK: u64 = 4096;
/// Blocks that one thread fills before it looks for more.
const STRETCH: usize = 64;
/// Standard deviation of the E4M3 elements of an FP8 matrix, well inside the format's range.
const FP8_SPREAD: f64 = 32.0;
/// E4M3 block scales: 16 neighbouring codes from 0.5 on.
const FIRST_SCALE: u8 = 0x30;

/// A file of generated tensors that follow each other without a header.
pub(super) struct Synthetic {
    seed: u64,
    tensors: Vec<(Range<u64>, IndexEntry)>,
}

impl Synthetic {
    /// Lays `entries` out one after the other.
    pub fn new(entries: Vec<IndexEntry>, seed: u64) -> Self {
        let mut next = 0;
        let place = |entry: IndexEntry| {
            let start = next;
            next += entry.bytes();
            (start..next, entry)
        };
        Self { seed, tensors: entries.into_iter().map(place).collect() }
    }

    /// Every tensor and its bytes.
    pub fn tensors(&self) -> impl Iterator<Item = (&IndexEntry, &Range<u64>)> {
        self.tensors.iter().map(|(range, entry)| (entry, range))
    }

    fn bytes(&self, range: &Range<u64>) -> Result<Vec<u8>> {
        let end = self.tensors.last().map_or(0, |(r, _)| r.end);
        let length = range.end.checked_sub(range.start).and_then(|n| usize::try_from(n).ok());
        let Some(length) = length.filter(|_| range.end <= end) else {
            return Err(Error::checkpoint(format!("bytes {range:?} of {end} generated ones")));
        };
        let mut out = vec![0; length];
        let first = self.tensors.partition_point(|(r, _)| r.end <= range.start);
        let mut rest = &mut out[..];
        for (place, entry) in &self.tensors[first..] {
            if place.start >= range.end {
                break;
            }
            let part = range.start.max(place.start)..range.end.min(place.end);
            // A part of `length` bytes.
            let (own, after) = rest.split_at_mut((part.end - part.start) as usize);
            Values::new(entry, self.seed).write(part.start - place.start, own);
            rest = after;
        }
        Ok(out)
    }
}

impl Source for Synthetic {
    fn read(&self, _file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        Box::pin(std::future::ready(self.bytes(&range).map(Bytes::from)))
    }
}

/// The bytes of one tensor: random picks from a table of elements, or random codes as they come.
struct Values {
    key: u64,
    picks: Picks,
}

enum Picks {
    /// Every byte is valid.
    Codes,
    /// One byte, 16 neighbouring codes.
    Scales,
    /// One value.
    Same([u8; 4]),
    Bytes(Box<[u8; 256]>),
    Halves(Box<[u16; TABLE]>),
    Words(Box<[u32; TABLE]>),
}

impl Values {
    fn new(entry: &IndexEntry, seed: u64) -> Self {
        let name = entry.name.as_bytes();
        // FNV-1a, so that a tensor's values do not depend on its place.
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
        });
        Self { key: mix(hash ^ mix(seed)), picks: picks(entry) }
    }

    /// Fills `out` with the tensor's bytes from `start` on, on every thread.
    fn write(&self, start: u64, out: &mut [u8]) {
        // Below a block.
        let skip = (start % BLOCK) as usize;
        let to_edge = (BLOCK as usize - skip) % BLOCK as usize;
        let (head, body) = out.split_at_mut(out.len().min(to_edge));
        if !head.is_empty() {
            let mut block = [0; BLOCK as usize];
            self.block(start / BLOCK, &mut block);
            head.copy_from_slice(&block[skip..][..head.len()]);
        }
        let first = start.div_ceil(BLOCK);
        let fill = |(stretch, out): (usize, &mut [u8])| {
            let mut block = [0; BLOCK as usize];
            for (number, out) in out.chunks_mut(BLOCK as usize).enumerate() {
                self.block(first + (stretch * STRETCH + number) as u64, &mut block);
                out.copy_from_slice(&block[..out.len()]);
            }
        };
        #[cfg(not(target_arch = "wasm32"))]
        {
            use rayon::prelude::*;
            body.par_chunks_mut(STRETCH * BLOCK as usize).enumerate().for_each(fill);
        }
        #[cfg(target_arch = "wasm32")]
        body.chunks_mut(STRETCH * BLOCK as usize).enumerate().for_each(fill);
    }

    fn block(&self, number: u64, out: &mut [u8; BLOCK as usize]) {
        let mut stream = Stream(mix(self.key ^ mix(number)));
        let mask = (TABLE - 1) as u64;
        // Each random word gives its table picks from bits 0, 16, 32 and 48 up.
        let pick = |word: u64, lane: usize| ((word >> (16 * lane)) & mask) as usize;
        match &self.picks {
            Picks::Codes => {
                out.as_chunks_mut::<8>()
                    .0
                    .iter_mut()
                    .for_each(|c| *c = stream.next().to_le_bytes());
            }
            Picks::Scales => {
                let (low, first) = (0x0f0f_0f0f_0f0f_0f0f, u64::from_ne_bytes([FIRST_SCALE; 8]));
                for chunk in out.as_chunks_mut::<8>().0 {
                    *chunk = ((stream.next() & low) | first).to_le_bytes();
                }
            }
            Picks::Same(value) => {
                out.as_chunks_mut::<4>().0.fill(*value);
            }
            Picks::Bytes(table) => {
                for chunk in out.as_chunks_mut::<8>().0 {
                    *chunk = stream.next().to_le_bytes().map(|byte| table[usize::from(byte)]);
                }
            }
            Picks::Halves(table) => {
                for chunk in out.as_chunks_mut::<8>().0 {
                    let word = stream.next();
                    let [a, b, c, d] =
                        std::array::from_fn(|lane| table[pick(word, lane)].to_le_bytes());
                    *chunk = [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]];
                }
            }
            Picks::Words(table) => {
                for chunk in out.as_chunks_mut::<4>().0 {
                    *chunk = table[pick(stream.next(), 0)].to_le_bytes();
                }
            }
        }
    }
}

/// Finaliser of splitmix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// splitmix64.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// Standard normal values of a table.
static NORMAL: LazyLock<Vec<f64>> = LazyLock::new(|| normal(TABLE));

/// Normal values, mean 0 and variance 1 exactly, in random order.
fn normal(count: usize) -> Vec<f64> {
    let mut stream = Stream(1);
    let mut unit = || (stream.next() >> 11) as f64 / (1u64 << 53) as f64;
    let draw = |_| (-2.0 * (1.0 - unit()).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
    let values: Vec<f64> = (0..count).map(draw).collect();
    let mean = values.iter().sum::<f64>() / count as f64;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count as f64;
    values.into_iter().map(|v| (v - mean) / variance.sqrt()).collect()
}

fn picks(entry: &IndexEntry) -> Picks {
    let value = |i| value(entry, i);
    match entry.dtype {
        Dtype::U8 => Picks::Codes,
        Dtype::F8_E4M3 if entry.name.ends_with(".weight_scale") => Picks::Scales,
        Dtype::F8_E4M3 => {
            let values = normal(256);
            Picks::Bytes(table(|i| f32_to_e4m3((values[i] * FP8_SPREAD) as f32)))
        }
        Dtype::BF16 => Picks::Halves(table(|i| bf16::from_f64(value(i)).to_bits())),
        Dtype::F16 => Picks::Halves(table(|i| f16::from_f64(value(i)).to_bits())),
        _ if entry.name.ends_with("_scale") || entry.name.ends_with("_scale_2") => {
            Picks::Same((value(0) as f32).to_le_bytes())
        }
        _ => Picks::Words(table(|i| (value(i) as f32).to_bits())),
    }
}

fn table<T, const N: usize>(entry: impl FnMut(usize) -> T) -> Box<[T; N]> {
    Box::new(std::array::from_fn(entry))
}

/// Entry `i` of the table of values of a float tensor.
fn value(entry: &IndexEntry, i: usize) -> f64 {
    let normal = NORMAL[i];
    let even = (i as f64 + 0.5) / TABLE as f64;
    let fan_in = entry.fan_in as f64;
    let is = |suffix: &str| entry.name.ends_with(suffix);
    if is(".weight_scale_2") {
        nvfp4_scale(fan_in)
    } else if is(".weight_scale") {
        1.0 / (FP8_SPREAD * fan_in.sqrt())
    } else if is("_scale") {
        1.0
    } else if is(".A_log") {
        (1.0 + 15.0 * even).ln()
    } else if is(".dt_bias") {
        // The inverse of softplus, of steps spread over [0.001, 0.1] by their logarithm.
        (1e-3 * 100f64.powf(even)).exp_m1().ln()
    } else if is("norm.weight") || is("norm_f.weight") || is(".D") {
        1.0 + 0.1 * normal
    } else if is("bias") {
        0.01 * normal
    } else {
        normal / fan_in.sqrt()
    }
}

/// Scale of an NVFP4 matrix of uniform codes and block scales, for standard deviation `1 / sqrt(columns)`.
fn nvfp4_scale(columns: f64) -> f64 {
    let codes = E2M1.iter().map(|v| f64::from(v * v)).sum::<f64>() / 8.0;
    let scales = (FIRST_SCALE..FIRST_SCALE + 16).map(|b| f64::from(e4m3_to_f32(b).powi(2)));
    1.0 / (columns * codes * scales.sum::<f64>() / 16.0).sqrt()
}
