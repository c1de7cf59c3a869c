//! Ragged batches: which rows belong to which sequence, validated once.

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};

/// A run of consecutive rows of one sequence. One layout in Rust, WGSL and CUDA.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Segment {
    /// First row of the batch that belongs to the segment.
    pub first_row: u32,
    /// Number of rows; 0 only in entries that pad a table.
    pub len: u32,
    /// State slot of the sequence.
    pub slot: u32,
    /// Position in the sequence of the first row; 0 makes the segment fresh: its slot is never read.
    pub position: u32,
}

/// Where one row of a batch belongs. One layout in Rust, WGSL and CUDA.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct RowPlace {
    /// State slot, or [`RowPlace::PADDING`] for a row of no segment.
    pub slot: u32,
    /// Position in its sequence.
    pub position: u32,
    /// Index of its segment.
    pub segment: u32,
    /// Rows of the same segment before it.
    pub index: u32,
}

impl RowPlace {
    /// Slot of a row that belongs to no segment and touches no state.
    pub const PADDING: u32 = u32::MAX;
}

/// What a batch is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// State slots of the session.
    pub slots: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Token ids lie below this.
    pub vocabulary: usize,
    /// Most rows in one step.
    pub rows: usize,
}

/// One sequence's share of a batch, as a caller gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Tokens to run, at least one.
    pub tokens: Vec<u32>,
    /// State slot.
    pub slot: usize,
    /// Tokens of the sequence already in the slot.
    pub position: usize,
}

/// A validated ragged batch. [`Batch::new`] is the only way to make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    tokens: Vec<u32>,
    segments: Vec<Segment>,
    context: usize,
}

impl Batch {
    /// Checks and packs `tokens` with the segments that cover them.
    ///
    /// # Errors
    /// A slot out of range, one slot in two segments, lengths that do not cover the rows in order, an empty segment
    /// or batch, a token past the vocabulary, a position past the context, more rows than a step takes.
    pub fn new(limits: &BatchLimits, tokens: Vec<u32>, segments: Vec<Segment>) -> Result<Self> {
        if tokens.is_empty() {
            return Err(Error::request("batch: no tokens, want at least one"));
        }
        if tokens.len() > limits.rows {
            return Err(Error::request(format!(
                "batch: {} rows, a step takes at most {}; split the prompt into chunks",
                tokens.len(),
                limits.rows
            )));
        }
        let mut used = vec![false; limits.slots.min(1 << 24)];
        let mut next = 0u64;
        let mut context = 0;
        for (index, segment) in segments.iter().enumerate() {
            check_segment(limits, index, segment, next)?;
            let taken = used.get_mut(to_usize(segment.slot)).map(|u| std::mem::replace(u, true));
            if taken != Some(false) {
                return Err(Error::request(format!(
                    "batch: segment {index}: slot {} is in two segments",
                    segment.slot
                )));
            }
            next += u64::from(segment.len);
            context = context.max(to_usize(segment.position) + to_usize(segment.len));
        }
        if next != tokens.len() as u64 {
            return Err(Error::request(format!(
                "batch: the segments cover {next} rows, want {} (tokens)",
                tokens.len()
            )));
        }
        check_tokens(limits, &tokens)?;
        Ok(Self { tokens, segments, context })
    }

    /// Packs chunks one after the other.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub fn from_chunks(limits: &BatchLimits, chunks: &[Chunk]) -> Result<Self> {
        let mut tokens = Vec::new();
        let mut segments = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            let narrow = |what: &str, value: usize| {
                u32::try_from(value).map_err(|_| {
                    Error::request(format!("batch: segment {index}: {what} {value} is too large"))
                })
            };
            segments.push(Segment {
                first_row: narrow("first row", tokens.len())?,
                len: narrow("length", chunk.tokens.len())?,
                slot: narrow("slot", chunk.slot)?,
                position: narrow("position", chunk.position)?,
            });
            tokens.extend_from_slice(&chunk.tokens);
        }
        Self::new(limits, tokens, segments)
    }

    /// The same sequences once this batch has run, a token of each that only the device knows: 0 stands for it here.
    ///
    /// # Errors
    /// A sequence is at the end of the context.
    pub fn following(&self, limits: &BatchLimits) -> Result<Self> {
        let later = |(first_row, s): (u32, &Segment)| Segment {
            first_row,
            len: 1,
            slot: s.slot,
            position: s.position + s.len,
        };
        let segments: Vec<_> = (0..).zip(&self.segments).map(later).collect();
        Self::new(limits, vec![0; segments.len()], segments)
    }

    /// Token ids, one a row.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The segments, in row order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Rows of the longest segment.
    pub fn longest(&self) -> usize {
        self.segments.iter().map(|s| to_usize(s.len)).max().unwrap_or(0)
    }

    /// Tokens of the longest sequence once the batch has run.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Last row of every segment, in order.
    pub fn last_rows(&self) -> Vec<u32> {
        self.segments.iter().map(|s| s.first_row + s.len - 1).collect()
    }

    /// Where each row belongs; rows from [`Batch::rows`] to `rows` are padding.
    pub fn places(&self, rows: usize) -> Vec<RowPlace> {
        let padding =
            RowPlace { slot: RowPlace::PADDING, position: 0, segment: RowPlace::PADDING, index: 0 };
        let mut places = vec![padding; rows.max(self.rows())];
        for (segment, s) in (0u32..).zip(&self.segments) {
            for index in 0..s.len {
                places[to_usize(s.first_row + index)] =
                    RowPlace { slot: s.slot, position: s.position + index, segment, index };
            }
        }
        places
    }
}

fn check_segment(limits: &BatchLimits, index: usize, segment: &Segment, next: u64) -> Result<()> {
    let refuse = |text: String| Err(Error::request(format!("batch: segment {index}: {text}")));
    if segment.len == 0 {
        return refuse("it is empty, want at least one row".into());
    }
    if u64::from(segment.first_row) != next {
        return refuse(format!(
            "first row is {}, want {next} (rows in order, no gap)",
            segment.first_row
        ));
    }
    if to_usize(segment.slot) >= limits.slots {
        return refuse(format!("slot is {}, want below {} (slots)", segment.slot, limits.slots));
    }
    let end = u64::from(segment.position) + u64::from(segment.len);
    if end > limits.context as u64 {
        return refuse(format!(
            "position {} + {} tokens is past the context of {}; ask for a longer --context or a shorter prompt",
            segment.position, segment.len, limits.context
        ));
    }
    Ok(())
}

fn check_tokens(limits: &BatchLimits, tokens: &[u32]) -> Result<()> {
    match tokens.iter().position(|&t| to_usize(t) >= limits.vocabulary) {
        Some(row) => Err(Error::request(format!(
            "batch: row {row}: token {} is past the vocabulary of {}",
            tokens[row], limits.vocabulary
        ))),
        None => Ok(()),
    }
}

/// A u32 from a device table as an index; lossless on every supported target.
pub(crate) const fn to_usize(value: u32) -> usize {
    value as usize
}

/// Upper bounds of a batch's shape. Grids and graph keys depend on these alone, never on the table's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Rows, padding included.
    pub rows: usize,
    /// Entries of the segment table, those of length 0 included.
    pub segments: usize,
    /// No segment has more rows.
    pub longest: usize,
    /// No sequence has more tokens once the step has run.
    pub context: usize,
}

impl BatchShape {
    /// The exact shape of `batch`.
    pub fn of(batch: &Batch) -> Self {
        Self {
            rows: batch.rows(),
            segments: batch.segments().len(),
            longest: batch.longest(),
            context: batch.context(),
        }
    }

    /// The same shape with room for longer sequences, in steps of 256 tokens or an eighth of the length: a sequence that
    /// grows token by token meets few shapes, and a step recorded for one of them comes back.
    #[must_use]
    pub fn in_steps(self) -> Self {
        let step = (self.context.next_power_of_two() / 8).max(256);
        Self { context: self.context.next_multiple_of(step), ..self }
    }
}

/// A batch's tables on the device.
pub struct Segments<B: Backend> {
    /// [`Segment`] entries; an entry of length 0 is padding. `[segments, 4] u32`
    pub table: Tensor<B>,
    /// [`RowPlace`] entries. `[rows, 4] u32`
    pub places: Tensor<B>,
    /// Upper bounds.
    pub shape: BatchShape,
}

impl<B: Backend> Clone for Segments<B> {
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), places: self.places.clone(), shape: self.shape }
    }
}
