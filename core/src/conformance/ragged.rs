//! The ragged batches that every stateful op is held to.

use super::fill::{Fill, Stream};
use crate::batch::{Batch, BatchLimits, BatchShape, Segment, to_usize};
use crate::error::Result;

/// Segments as `(len, slot, position)`, with padding behind them.
#[derive(Clone, Copy, Debug)]
pub struct Ragged {
    /// Slots of the state; those of no segment must stay as they are.
    pub slots: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// `(len, slot, position)` of each segment, in row order.
    pub list: &'static [(u32, u32, u32)],
    /// Rows of no segment behind the others, and as many empty entries in the segment table.
    pub padding: usize,
}

impl Ragged {
    /// A single fresh token: no different from any other fresh segment.
    pub const FIRST: Self = Self { slots: 2, context: 8, list: &[(1, 1, 0)], padding: 0 };
    /// One token each of three sequences in another order than their slots, one of them at its first token.
    pub const DECODE: Self =
        Self { slots: 5, context: 16, list: &[(1, 3, 9), (1, 0, 0), (1, 2, 3)], padding: 1 };
    /// Fresh and resuming segments of many lengths, shorter and longer than any window.
    pub const MIXED: Self = Self {
        slots: 7,
        context: 80,
        list: &[(3, 2, 0), (1, 0, 0), (2, 3, 7), (1, 5, 40), (17, 4, 0), (33, 1, 1)],
        padding: 3,
    };
    /// Longer than a kernel keeps in shared memory at once.
    pub const LONG: Self =
        Self { slots: 3, context: 400, list: &[(331, 2, 0), (5, 0, 64)], padding: 0 };
    /// Every batch.
    pub const ALL: [Self; 4] = [Self::FIRST, Self::DECODE, Self::MIXED, Self::LONG];

    /// Rows, padding included.
    pub fn rows(&self) -> usize {
        self.list.iter().map(|s| to_usize(s.0)).sum::<usize>() + self.padding
    }

    /// The validated batch and the shape of its padded tables.
    ///
    /// # Errors
    /// The batch is not valid.
    pub fn batch(&self) -> Result<(Batch, BatchShape)> {
        let rows = self.rows() - self.padding;
        let mut first_row = 0;
        let segment = |&(len, slot, position): &(u32, u32, u32)| {
            first_row += len;
            Segment { first_row: first_row - len, len, slot, position }
        };
        let segments = self.list.iter().map(segment).collect();
        let limits = BatchLimits { slots: self.slots, context: self.context, vocabulary: 1, rows };
        let batch = Batch::new(&limits, vec![0; rows], segments)?;
        let shape = BatchShape {
            rows: self.rows(),
            segments: self.list.len() + self.padding,
            ..BatchShape::of(&batch)
        };
        Ok((batch, shape))
    }

    /// Recurrent state of all slots: NaN in those of fresh segments, which nothing may read.
    pub fn recurrent(&self, stream: &mut Stream, fill: Fill, per_slot: usize) -> Vec<f32> {
        let mut values = stream.values(fill, self.slots * per_slot);
        for (_, slot, _) in self.list.iter().filter(|s| s.2 == 0) {
            values[to_usize(*slot) * per_slot..][..per_slot].fill(f32::NAN);
        }
        values
    }

    /// A cache before the step's rows are appended: NaN from each segment's position on, which nothing may read.
    pub fn cache(&self, stream: &mut Stream, cols: usize) -> Vec<f32> {
        self.cached(stream, cols, |_, position| position)
    }

    /// A cache that holds the step's own rows: NaN behind them, which nothing may read.
    pub fn appended_cache(&self, stream: &mut Stream, cols: usize) -> Vec<f32> {
        self.cached(stream, cols, |len, position| position + len)
    }

    fn cached(&self, stream: &mut Stream, cols: usize, held: fn(u32, u32) -> u32) -> Vec<f32> {
        let per_slot = self.context * cols;
        let mut values = stream.values(Fill::Normal(1.0), self.slots * per_slot);
        for &(len, slot, position) in self.list {
            let slot = &mut values[to_usize(slot) * per_slot..][..per_slot];
            slot[to_usize(held(len, position)) * cols..].fill(f32::NAN);
        }
        values
    }

    /// Segments for the name of a case.
    pub fn name(&self) -> String {
        match self.list {
            [(len, _, position)] => format!("{len} rows at {position}"),
            list => format!("{} segments in {} rows", list.len(), self.rows()),
        }
    }
}
