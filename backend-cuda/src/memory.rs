//! Device allocations, shared by clones and counted by class while they live.

use crate::driver::Driver;
use cudarc::driver::{DriverError, sys};
use std::cell::RefCell;
use std::rc::Rc;
use whipsnake_core::backend::{Ledger, Memory};
use whipsnake_core::error::{Error, Result};

/// Buffers begin and are padded to this many bytes.
pub(crate) const ALIGNMENT: usize = 256;

/// A device allocation; clones share it.
#[derive(Clone)]
pub struct CudaBuffer(Rc<Allocation>);

struct Allocation {
    driver: Rc<Driver>,
    ledger: Rc<RefCell<Ledger>>,
    pointer: u64,
    bytes: u64,
    class: Memory,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        *self.ledger.borrow_mut().of(self.class) -= self.bytes;
        self.driver.free(self.pointer);
    }
}

impl CudaBuffer {
    /// Address of the first byte on the device.
    pub(crate) fn pointer(&self) -> u64 {
        self.0.pointer
    }

    /// Its size, padding included.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// Gives out device memory and counts it.
#[derive(Clone)]
pub(crate) struct Pool {
    driver: Rc<Driver>,
    ledger: Rc<RefCell<Ledger>>,
}

impl Pool {
    pub fn new(driver: Rc<Driver>) -> Self {
        Self { driver, ledger: Rc::default() }
    }

    pub fn ledger(&self) -> Ledger {
        *self.ledger.borrow()
    }

    /// Allocates at least `bytes`.
    pub fn allocate(&self, bytes: usize, class: Memory, label: &str) -> Result<CudaBuffer> {
        let padded = bytes.max(1).next_multiple_of(ALIGNMENT);
        let pointer =
            self.driver.allocate(padded).map_err(|error| self.refusal(&error, padded, label))?;
        *self.ledger.borrow_mut().of(class) += padded as u64;
        Ok(CudaBuffer(Rc::new(Allocation {
            driver: self.driver.clone(),
            ledger: self.ledger.clone(),
            pointer,
            bytes: padded as u64,
            class,
        })))
    }

    fn refusal(&self, error: &DriverError, bytes: usize, label: &str) -> Error {
        if error.0 != sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Error::device(format!("cuda: allocating {bytes} bytes for {label}: {error}"));
        }
        let free = self.driver.free_memory().map_or(0, |free| free as usize);
        Error::device(format!(
            "cuda: out of device memory: {label} needs {bytes} bytes, {free} are free, {} too few; \
             try a shorter --context, a smaller --prefill-chunk, fewer slots or a smaller format",
            bytes.saturating_sub(free)
        ))
    }
}
