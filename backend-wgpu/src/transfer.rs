//! Bytes to and from the device.

use crate::Wgpu;
use crate::buffer::ALIGNMENT;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use whipsnake_core::error::{Error, Result};
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::LocalFuture;

/// Read-back buffers kept for the next read.
const KEPT_STAGING: usize = 4;

/// A run of bytes of a row on the device, and where the row starts in the copy.
struct Piece {
    source: u64,
    target: u64,
    bytes: u64,
    /// Bytes before the row that alignment adds.
    skip: usize,
}

impl Wgpu {
    /// Queues a write of every row of the window.
    pub(crate) fn upload(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()> {
        self.faults.check()?;
        self.flush_pending()?;
        let size = to.dtype().bytes();
        let (width, stride) = (to.cols() * size, (to.stride() * size) as u64);
        let start = to.offset_bytes() as u64;
        if width == 0 || to.rows() == 0 {
            return Ok(());
        }
        if to.is_dense() {
            return self.write_run(to, start, bytes);
        }
        (0u64..)
            .zip(bytes.chunks(width))
            .try_for_each(|(row, bytes)| self.write_run(to, start + row * stride, bytes))
    }

    /// Writes bytes that begin and end at whole words; the end of the buffer may be ragged.
    fn write_run(&self, to: &Tensor<Self>, offset: u64, bytes: &[u8]) -> Result<()> {
        let buffer = to.buffer();
        let whole = bytes.len() / 4 * 4;
        let ragged = bytes.len() > whole;
        // The padding of the allocation takes the rest of the last word.
        let at_end = offset + bytes.len() as u64 + ALIGNMENT > buffer.bytes();
        if !offset.is_multiple_of(4) || (ragged && !at_end) {
            return Err(Error::device(format!(
                "wgpu: rows of {} bytes at byte {offset} are not whole words, want a multiple of 4",
                bytes.len()
            )));
        }
        self.queue.write_buffer(buffer.raw(), offset, &bytes[..whole]);
        if ragged {
            let mut word = [0; 4];
            word[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.queue.write_buffer(buffer.raw(), offset + whole as u64, &word);
        }
        Ok(())
    }

    /// Waits for what is encoded and returns the window, rows dense.
    pub(crate) async fn download(&self, from: &Tensor<Self>) -> Result<Vec<u8>> {
        let bytes = self.download_later(from)?.await?;
        // What was written before has been copied: its staging memory is free again.
        #[cfg(target_arch = "wasm32")]
        self.staged.set(0);
        Ok(bytes)
    }

    /// Submits what is encoded and a copy of the window; its rows, dense, once they are waited for.
    pub(crate) fn download_later(&self, from: &Tensor<Self>) -> Result<Later<Vec<u8>>> {
        let width = from.cols() * from.dtype().bytes();
        if width == 0 || from.rows() == 0 {
            return Ok(Box::pin(std::future::ready(Ok(Vec::new()))));
        }
        let pieces = pieces(from);
        let total = pieces.last().map_or(0, |p| p.target + p.bytes);
        let copy = |encoder: &mut wgpu::CommandEncoder, staging: &wgpu::Buffer| {
            for p in &pieces {
                let source = from.buffer().raw();
                encoder.copy_buffer_to_buffer(source, p.source, staging, p.target, p.bytes);
            }
        };
        let coming = self.read_back(total, copy)?;
        let from = from.clone();
        Ok(Box::pin(async move {
            coming.await?.take(total, |view| unpack(view, &from, &pieces, width))
        }))
    }

    /// Bytes from the start of a driver's buffer.
    pub(crate) async fn read_raw(&self, from: &wgpu::Buffer, bytes: u64) -> Result<Vec<u8>> {
        let copy = |encoder: &mut wgpu::CommandEncoder, staging: &wgpu::Buffer| {
            encoder.copy_buffer_to_buffer(from, 0, staging, 0, bytes);
        };
        self.read_back(bytes, copy)?.await?.take(bytes, <[u8]>::to_vec)
    }

    /// Submits what is pending and a copy into a read-back buffer; the buffer, mapped, once that is waited for.
    fn read_back(
        &self,
        total: u64,
        copy: impl FnOnce(&mut wgpu::CommandEncoder, &wgpu::Buffer),
    ) -> Result<Later<Landed>> {
        let staging = self.take_staging(total)?;
        let submitted = self.flush(|encoder| copy(encoder, &staging))?;
        let landing = Landing::default();
        let signal = landing.clone();
        staging.map_async(wgpu::MapMode::Read, ..total, move |outcome| signal.land(outcome));
        let (device, faults, kept) =
            (self.device.clone(), self.faults.clone(), self.staging.clone());
        Ok(Box::pin(async move {
            // Says more than the wait that it breaks.
            let waited = reached(&device, submitted);
            faults.check()?;
            waited?;
            let outcome = landing.await;
            faults.check()?;
            outcome.map_err(|e| Error::device(format!("wgpu: read-back: {e}")))?;
            Ok(Landed { staging, kept })
        }))
    }

    /// Waits until the device has done what was submitted.
    #[cfg(target_arch = "wasm32")]
    pub(crate) async fn settled(&self) -> Result<()> {
        let landing = Landing::default();
        let signal = landing.clone();
        self.queue.on_submitted_work_done(move || signal.land(Ok(())));
        // The signal itself cannot fail; what went wrong has reached the faults.
        let _ = landing.await;
        self.faults.check()
    }

    /// Blocks until the device has done what was submitted; never in a browser.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn wait(&self) -> Result<()> {
        let waited = self.device.poll(wgpu::PollType::wait_indefinitely());
        self.faults.check()?;
        waited.map(drop).map_err(|e| Error::device(format!("wgpu: waiting for the device: {e}")))
    }

    /// A read-back buffer of at least `bytes`, a kept one where it fits.
    fn take_staging(&self, bytes: u64) -> Result<wgpu::Buffer> {
        let mut kept = self.staging.borrow_mut();
        if let Some(i) =
            kept.iter().position(|b| b.size() >= bytes && b.size() / 4 <= bytes.max(1024))
        {
            return Ok(kept.swap_remove(i));
        }
        drop(kept);
        let size = bytes.next_power_of_two().max(256).min(self.limits.max_buffer_size.max(bytes));
        let (buffer, error) = self.caught(|device| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("read-back"),
                size,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        match error {
            None => Ok(buffer),
            Some(error) => Err(Error::device(crate::faults::describe(&error))
                .within(format!("read-back of {bytes} bytes"))),
        }
    }
}

/// Waits until the device has done a submission and all before it; in a browser its signal is all there is.
fn reached(device: &wgpu::Device, submitted: wgpu::SubmissionIndex) -> Result<()> {
    if cfg!(target_arch = "wasm32") {
        return Ok(());
    }
    let until = wgpu::PollType::Wait { submission_index: Some(submitted), timeout: None };
    let waited = device.poll(until);
    if waited.is_err() {
        // A device that is gone says so in its own time.
        let _ = device.poll(wgpu::PollType::Poll);
    }
    waited.map(drop).map_err(|e| Error::device(format!("wgpu: waiting for the device: {e}")))
}

/// A read that is waited for later.
type Later<T> = LocalFuture<'static, Result<T>>;

/// A read-back buffer with its bytes.
struct Landed {
    staging: wgpu::Buffer,
    /// Where it goes for the next read.
    kept: Rc<RefCell<Vec<wgpu::Buffer>>>,
}

impl Landed {
    fn take<T>(self, total: u64, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let taken = {
            let view = self
                .staging
                .get_mapped_range(..total)
                .map_err(|e| Error::device(format!("wgpu: read-back: {e}")))?;
            take(&view)
        };
        self.staging.unmap();
        let mut kept = self.kept.borrow_mut();
        if kept.len() == KEPT_STAGING {
            kept.remove(0);
        }
        kept.push(self.staging);
        Ok(taken)
    }
}

/// What to copy: the whole span where little of it lies between rows, else row by row.
fn pieces(from: &Tensor<Wgpu>) -> Vec<Piece> {
    let size = from.dtype().bytes();
    let (start, span) = (from.offset_bytes() as u64, from.span_bytes() as u64);
    let (width, stride) = ((from.cols() * size) as u64, (from.stride() * size) as u64);
    let piece = |source: u64, bytes: u64, target: u64| {
        let skip = source % 4;
        // Below 4.
        let begin = source - skip;
        Piece {
            source: begin,
            target,
            bytes: (skip + bytes).next_multiple_of(4),
            skip: skip as usize,
        }
    };
    if from.is_dense() || span <= 2 * width * from.rows() as u64 {
        return vec![piece(start, span, 0)];
    }
    let mut target = 0;
    let row = |row: u64| {
        let piece = piece(start + row * stride, width, target);
        target += piece.bytes;
        piece
    };
    (0..from.rows() as u64).map(row).collect()
}

/// The rows of the window out of the copied pieces.
fn unpack(bytes: &[u8], from: &Tensor<Wgpu>, pieces: &[Piece], width: usize) -> Vec<u8> {
    let stride = from.stride() * from.dtype().bytes();
    let start = |row: usize| match pieces {
        [whole] => whole.skip + row * stride,
        // Targets lie within the mapped view, so they fit usize.
        _ => pieces[row].target as usize + pieces[row].skip,
    };
    (0..from.rows()).flat_map(|row| bytes[start(row)..][..width].iter().copied()).collect()
}

type Outcome = std::result::Result<(), wgpu::BufferAsyncError>;

/// A future of a mapping's outcome.
#[derive(Clone, Default)]
struct Landing(Arc<Mutex<(Option<Outcome>, Option<Waker>)>>);

impl Landing {
    fn land(&self, outcome: Outcome) {
        let waker = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = Some(outcome);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Landing {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.0.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
