//! Weights on their way to the device: a ring of mapped buffers, so that the driver pins memory once and copies while the
//! host fills the next buffer.

use crate::Wgpu;
use crate::buffer::Buffer;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use whipsnake_core::cpu::{STRETCH, share};
use whipsnake_core::error::{Error, Result};

/// Bytes of one buffer of the ring.
const BYTES: u64 = 16 << 20;
/// Buffers of the ring.
const BUFFERS: usize = 4;

/// Mapped buffers: the first may be on its way to the device, the last was handed over last.
#[derive(Default)]
pub(crate) struct Uploads {
    ring: VecDeque<Staging>,
    /// The buffer that is being filled.
    filling: Option<Filling>,
}

struct Staging {
    raw: wgpu::Buffer,
    /// [`COPYING`] until the driver has copied it, then how mapping it again went.
    state: Arc<AtomicU8>,
}

const COPYING: u8 = 0;
const MAPPED: u8 = 1;
const FAILED: u8 = 2;

struct Filling {
    staging: Staging,
    used: u64,
    /// `(offset in the staging buffer, target, offset, bytes)`.
    copies: Vec<(u64, Buffer, u64, u64)>,
}

/// A part of a mapped buffer that one thread writes.
struct Stretch<'a>(wgpu::WriteOnly<'a, [u8]>);

// SAFETY: like `&mut [u8]`, it is the only way to its bytes and bound to no thread; the binding says so of sized types alone.
unsafe impl Send for Stretch<'_> {}

/// Copies on every thread.
fn copy(to: wgpu::WriteOnly<'_, [u8]>, from: &[u8]) {
    let mut rest = to;
    let mut stretches = Vec::new();
    for from in from.chunks(STRETCH) {
        let (head, tail) = rest.split_at(from.len());
        stretches.push((Stretch(head), from));
        rest = tail;
    }
    share(stretches, |(mut to, from)| to.0.copy_from_slice(from));
}

impl Wgpu {
    /// Queues a write of whole words to a weight.
    pub(crate) fn upload_weight(&self, to: &Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let mut filling = self.filling()?;
            let room = usize::try_from(BYTES - filling.used).unwrap_or(usize::MAX);
            let part = &bytes[done..][..room.min(bytes.len() - done)];
            let (start, size) = (filling.used, part.len() as u64);
            let mut view = filling
                .staging
                .raw
                .get_mapped_range_mut(start..start + size)
                .map_err(|e| Error::device(format!("wgpu: upload: {e}")))?;
            copy(view.slice(..), part);
            drop(view);
            filling.copies.push((start, to.clone(), offset + done as u64, size));
            // Mapped ranges begin at multiples of 8.
            filling.used = (start + size).next_multiple_of(8);
            done += part.len();
            let full = filling.used == BYTES;
            self.uploads.borrow_mut().filling = Some(filling);
            if full {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    /// A buffer with room: the one in hand, a new one, or the oldest once the device has copied it.
    fn filling(&self) -> Result<Filling> {
        let mut uploads = self.uploads.borrow_mut();
        if let Some(filling) = uploads.filling.take() {
            return Ok(filling);
        }
        let fresh = |staging| Filling { staging, used: 0, copies: Vec::new() };
        if uploads.ring.len() < BUFFERS {
            return self.staging_buffer().map(fresh);
        }
        let staging = uploads.ring.pop_front();
        drop(uploads);
        let Some(staging) = staging else { return self.staging_buffer().map(fresh) };
        loop {
            match staging.state.load(Ordering::Acquire) {
                MAPPED => return Ok(fresh(staging)),
                FAILED => return Err(Error::device("wgpu: upload: the driver maps no memory")),
                _ => self.wait()?,
            }
        }
    }

    fn staging_buffer(&self) -> Result<Staging> {
        let (raw, error) = self.caught(|device| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("upload"),
                size: BYTES,
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            })
        });
        match error {
            None => Ok(Staging { raw, state: Arc::new(AtomicU8::new(MAPPED)) }),
            Some(error) => {
                Err(Error::device(crate::faults::describe(&error)).within("upload buffer"))
            }
        }
    }

    /// Hands over what is in hand and lets go of the ring: loading is over when ops run.
    pub(crate) fn end_uploads(&self) -> Result<()> {
        self.hand_over()?;
        self.uploads.borrow_mut().ring.clear();
        Ok(())
    }

    /// Submits the copies of the buffer in hand and asks for it back.
    fn hand_over(&self) -> Result<()> {
        let Some(filling) = self.uploads.borrow_mut().filling.take() else { return Ok(()) };
        let Filling { staging, copies, .. } = filling;
        staging.raw.unmap();
        staging.state.store(COPYING, Ordering::Release);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for (start, to, offset, bytes) in &copies {
            encoder.copy_buffer_to_buffer(&staging.raw, *start, to.raw(), *offset, *bytes);
        }
        self.queue.submit([encoder.finish()]);
        let state = staging.state.clone();
        staging.raw.map_async(wgpu::MapMode::Write, .., move |outcome| {
            state.store(if outcome.is_ok() { MAPPED } else { FAILED }, Ordering::Release);
        });
        self.uploads.borrow_mut().ring.push_back(staging);
        self.faults.check()
    }
}
