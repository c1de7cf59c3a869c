//! Reads that are waited for later: small copies into page-locked memory, an event behind each.

use crate::driver::{Block, Driver, checked};
use cudarc::driver::sys;
use std::cell::RefCell;
use std::rc::Rc;
use whipsnake_core::error::Result;
use whipsnake_core::weight::LocalFuture;

/// Least bytes of a page.
const PAGE: usize = 4096;

/// Page-locked memory that one copy at a time goes to.
struct Page {
    driver: Rc<Driver>,
    memory: *mut u8,
    bytes: usize,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.driver.free_pinned(self.memory);
    }
}

/// A page in use, which goes back to the others afterwards. One that is given up before its copy has landed may serve
/// another at once: that copy lands later.
struct Lent {
    page: Option<Page>,
    free: Rc<RefCell<Vec<Page>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.free.borrow_mut().extend(self.page.take());
    }
}

/// Pages that no copy is on its way to.
pub(crate) struct Later {
    driver: Rc<Driver>,
    free: Rc<RefCell<Vec<Page>>>,
}

impl Later {
    pub fn new(driver: Rc<Driver>) -> Self {
        Self { driver, free: Rc::default() }
    }

    /// Queues a copy of a block; its bytes, once they are waited for.
    pub fn download(&self, from: Block) -> Result<LocalFuture<'static, Result<Vec<u8>>>> {
        let bytes = from.width * from.rows;
        let page = self.page(bytes)?;
        let memory = page.memory;
        let lent = Lent { page: Some(page), free: self.free.clone() };
        // SAFETY: the page holds as many bytes, and is read only behind the event.
        unsafe { self.driver.download(from, memory)? };
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = checked("recording an event", self.driver.stream().record_event(Some(flags)))?;
        Ok(Box::pin(async move {
            checked("waiting for a copy", event.synchronize())?;
            // SAFETY: the copy has landed, and the page is lent to this read alone.
            let landed = unsafe { std::slice::from_raw_parts(memory, bytes) }.to_vec();
            drop(lent);
            Ok(landed)
        }))
    }

    fn page(&self, bytes: usize) -> Result<Page> {
        let mut free = self.free.borrow_mut();
        if let Some(index) = free.iter().position(|page| page.bytes >= bytes) {
            return Ok(free.swap_remove(index));
        }
        let bytes = bytes.next_power_of_two().max(PAGE);
        Ok(Page { memory: self.driver.pinned(bytes)?, bytes, driver: self.driver.clone() })
    }
}
