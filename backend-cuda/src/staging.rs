//! Page-locked memory that copies to and from the device pass through.

use crate::driver::{Block, Driver, checked};
use cudarc::driver::{CudaEvent, sys};
use std::rc::Rc;
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

    /// Queues a copy of `bytes`, at most [`SLOT_BYTES`], to a block of as many.
    pub fn upload(&mut self, to: Block, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.used + bytes.len() > SLOT_BYTES {
            self.advance()?;
        }
        // SAFETY: the slot has room, checked above, and the device has passed what it held before; the copy reads it
        // before the ring comes round again.
        unsafe {
            let host = self.memory.add(self.slot * SLOT_BYTES + self.used);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), host, bytes.len());
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

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = self.driver.synchronize() {
            tracing::warn!(%error, "the stream ends with an error");
        }
        self.driver.free_pinned(self.memory);
        self.driver.free_pinned(self.readback);
    }
}
