//! Device allocations, counted while they live.

use crate::Wgpu;
use crate::faults::describe;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use whipsnake_core::backend::{Ledger, Memory};
use whipsnake_core::error::{Error, Result};

/// Buffers begin and are padded to this many bytes: the largest binding alignment that WebGPU allows a device to ask.
pub(crate) const ALIGNMENT: u64 = 256;

/// Bytes of scratch for what passes between the dispatches of one op: parts of a split context or of a long row, scales of
/// rows.
pub(crate) const WORKSPACE: u64 = 4 << 20;

/// A device allocation; clones share it.
#[derive(Clone)]
pub struct Buffer(Rc<Allocation>);

struct Allocation {
    raw: wgpu::Buffer,
    id: u64,
    class: Memory,
    books: Rc<Books>,
}

/// What is allocated, and what went away since the caches were last swept.
#[derive(Default)]
pub(crate) struct Books {
    ledger: RefCell<Ledger>,
    next_id: Cell<u64>,
    dropped: RefCell<Vec<u64>>,
}

impl Books {
    /// Bytes held now.
    pub fn ledger(&self) -> Ledger {
        *self.ledger.borrow()
    }

    /// Ids of the buffers that went away since the last call.
    pub fn take_dropped(&self) -> Vec<u64> {
        self.dropped.take()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        *self.books.ledger.borrow_mut().of(self.class) -= self.raw.size();
        self.books.dropped.borrow_mut().push(self.id);
    }
}

impl Buffer {
    /// The driver's handle.
    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.0.raw
    }

    /// A number that no other buffer of the device has or had.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// Size in bytes, padding included.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.raw.size()
    }
}

impl Wgpu {
    /// Allocates `bytes`, padded.
    pub(crate) fn buffer(&self, bytes: u64, class: Memory, label: &str) -> Result<Buffer> {
        self.faults.check()?;
        let size = bytes.max(1).next_multiple_of(ALIGNMENT);
        let most = self.limits.max_buffer_size;
        if size > most {
            return Err(Error::device(format!(
                "wgpu: {label} needs {size} bytes, the device allows {most} in one buffer; use a smaller model, context or batch"
            )));
        }
        let raw = self.create(size, label)?;
        *self.books.ledger.borrow_mut().of(class) += size;
        let id = self.books.next_id.replace(self.books.next_id.get() + 1);
        Ok(Buffer(Rc::new(Allocation { raw, id, class, books: self.books.clone() })))
    }

    /// Scratch that an op hands to its next dispatch, there from the opening of the device on.
    pub(crate) fn workspace(&self) -> Result<&Buffer> {
        if let Some(buffer) = self.workspace.get() {
            return Ok(buffer);
        }
        let buffer = self.buffer(WORKSPACE, Memory::Scratch, "workspace")?;
        Ok(self.workspace.get_or_init(|| buffer))
    }

    fn create(&self, size: u64, label: &str) -> Result<wgpu::Buffer> {
        let (raw, error) = self.caught(|device| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size,
                usage: wgpu::BufferUsages::STORAGE
                    | wgpu::BufferUsages::COPY_SRC
                    | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        match error {
            None => Ok(raw),
            Some(wgpu::Error::OutOfMemory { .. }) => {
                Err(out_of_memory(label, size, self.books.ledger().total()))
            }
            Some(error) => Err(Error::device(describe(&error)).within(label)),
        }
    }

    /// Runs `act` and returns the error that it caused. The browser reports errors later: the next call's check
    /// returns them.
    pub(crate) fn caught<T>(
        &self,
        act: impl FnOnce(&wgpu::Device) -> T,
    ) -> (T, Option<wgpu::Error>) {
        #[cfg(target_arch = "wasm32")]
        return (act(&self.device), None);
        #[cfg(not(target_arch = "wasm32"))]
        {
            let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
            let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
            let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
            let value = act(&self.device);
            let errors = [internal, validation, memory].map(|s| pollster::block_on(s.pop()));
            (value, errors.into_iter().flatten().next())
        }
    }
}

fn out_of_memory(label: &str, size: u64, held: u64) -> Error {
    Error::device(format!(
        "wgpu: out of memory: {label} needs {size} bytes beside the {held} already held; use a smaller model, context or batch"
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn out_of_memory_names_what_needs_how_much() {
        assert_eq!(
            super::out_of_memory("layer 3 keys", 512, 1024).to_string(),
            "wgpu: out of memory: layer 3 keys needs 512 bytes beside the 1024 already held; use a smaller model, context or batch"
        );
    }
}
