//! Page-locked memory that copies to and from the device pass through.

use crate::driver::{Block, Driver, checked};
use cudarc::driver::{CudaEvent, sys};
use std::ops::Range;
use std::rc::Rc;
use whipsnake_core::cpu::{STRETCH, share};
use whipsnake_core::error::Result;

/// Bytes of one slot of the ring: enough for a copy at full speed.
pub(crate) const SLOT_BYTES: usize = 8 << 20;

/// Slots of the ring: one is filled while another is copied.
const SLOTS: usize = 3;

/// Copies begin at multiples of this.
const ALIGNMENT: usize = 64;

/// A ring of page-locked slots. Small writes share a slot; a slot is reused once the stream has passed it.
pub(crate) struct Staging {
    driver: Rc<Driver>,
    memory: *mut u8,
    /// Set when the ring left the slot: its copies are done once the event is.
    left: [Option<CudaEvent>; SLOTS],
    slot: usize,
    used: usize,
    readback: *mut u8,
    readback_bytes: usize,
}

impl Staging {
    pub fn new(driver: Rc<Driver>) -> Result<Self> {
        let memory = driver.pinned(SLOTS * SLOT_BYTES)?;
        let readback_bytes = 1 << 20;
        let readback = match driver.pinned(readback_bytes) {
            Ok(readback) => readback,
            Err(error) => {
                driver.free_pinned(memory);
                return Err(error);
            }
        };
        Ok(Self {
            driver,
            memory,
            left: [const { None }; SLOTS],
            slot: 0,
            used: 0,
            readback,
            readback_bytes,
        })
    }

    /// Queues a copy of `bytes` to a block of as many.
    pub fn upload(&mut self, to: Block, bytes: &[u8]) -> Result<()> {
        for (piece, range) in pieces(to) {
            self.upload_piece(piece, &bytes[range])?;
        }
        Ok(())
    }

    fn upload_piece(&mut self, to: Block, bytes: &[u8]) -> Result<()> {
        if self.used + bytes.len() > SLOT_BYTES {
            self.advance()?;
        }
        // SAFETY: the slot has room, checked above, and the device has passed what it held before; the copy reads it
        // before the ring comes round again.
        unsafe {
            let host = self.memory.add(self.slot * SLOT_BYTES + self.used);
            let slot = std::slice::from_raw_parts_mut(host, bytes.len());
            let stretches = slot.chunks_mut(STRETCH).zip(bytes.chunks(STRETCH)).collect();
            share(stretches, |(to, from): (&mut [u8], &[u8])| to.copy_from_slice(from));
            self.driver.upload(to, host)?;
        }
        self.used = (self.used + bytes.len()).next_multiple_of(ALIGNMENT);
        Ok(())
    }

    /// Leaves the slot and waits until the next one is free.
    fn advance(&mut self) -> Result<()> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = checked("recording an event", self.driver.stream().record_event(Some(flags)))?;
        self.left[self.slot] = Some(event);
        self.slot = (self.slot + 1) % SLOTS;
        self.used = 0;
        match self.left[self.slot].take() {
            Some(event) => checked("waiting for a copy", event.synchronize()),
            None => Ok(()),
        }
    }

    /// Waits for the stream and returns the bytes of a block.
    pub fn download(&mut self, from: Block) -> Result<Vec<u8>> {
        let bytes = from.width * from.rows;
        if bytes == 0 {
            self.driver.synchronize()?;
            return Ok(Vec::new());
        }
        if bytes > self.readback_bytes {
            let larger = self.driver.pinned(bytes.next_power_of_two())?;
            self.driver.free_pinned(std::mem::replace(&mut self.readback, larger));
            self.readback_bytes = bytes.next_power_of_two();
        }
        // SAFETY: the page-locked buffer holds as many bytes, and is read only after the stream was waited for.
        unsafe {
            self.driver.download(from, self.readback)?;
            self.driver.synchronize()?;
            Ok(std::slice::from_raw_parts(self.readback, bytes).to_vec())
        }
    }
}

/// A block in pieces that each fit a slot, and where their bytes lie among the block's own: whole rows, or parts of one.
fn pieces(block: Block) -> impl Iterator<Item = (Block, Range<usize>)> {
    let cols = block.width.clamp(1, SLOT_BYTES);
    let rows = SLOT_BYTES / cols;
    (0..block.rows).step_by(rows).flat_map(move |row| {
        (0..block.width).step_by(cols).map(move |col| {
            let piece = Block {
                pointer: block.pointer + (row * block.pitch + col) as u64,
                width: cols.min(block.width - col),
                rows: rows.min(block.rows - row),
                ..block
            };
            let start = row * block.width + col;
            (piece, start..start + piece.width * piece.rows)
        })
    })
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = self.driver.synchronize() {
            tracing::warn!(%error, "the stream ends with an error");
        }
        self.driver.free_pinned(self.memory);
        self.driver.free_pinned(self.readback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte of a block once, each in a piece that fits a slot and at its place on the device.
    fn cover(block: Block) {
        let mut next = 0;
        for (piece, range) in pieces(block) {
            assert_eq!(range.start, next);
            assert!(range.len() <= SLOT_BYTES && range.len() == piece.width * piece.rows);
            let (row, col) = (range.start / block.width, range.start % block.width);
            assert_eq!(piece.pointer, block.pointer + (row * block.pitch + col) as u64);
            assert!(piece.rows == 1 || (piece.pitch == block.pitch && piece.width == block.width));
            next = range.end;
        }
        assert_eq!(next, block.width * block.rows);
    }

    #[test]
    fn a_block_of_any_shape_is_cut_into_slots() {
        let slot = SLOT_BYTES;
        let shapes = [(1, 1), (100, 7), (slot / 3, 10), (slot, 2), (slot + 1, 3), (3 * slot, 1)];
        for (width, rows) in shapes {
            cover(Block { pointer: 1 << 40, pitch: width + 64, width, rows });
        }
        assert_eq!(pieces(Block { pointer: 0, pitch: 0, width: 0, rows: 3 }).count(), 0);
    }
}
