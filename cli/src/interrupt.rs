//! Ctrl-C: stops the reply that is being written, or leaves the program when there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Context;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const PENDING: u8 = 2;
/// What shells report for a program that Ctrl-C ended.
const EXIT_CODE: i32 = 130;

/// A flag that Ctrl-C raises and that whoever writes a reply looks at between steps.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// A flag that Ctrl-C raises while a reply is being written. With no reply under way, and on a
    /// second Ctrl-C, the program ends with code 130. Can be installed once in a process.
    pub fn on_ctrl_c() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let handler = interrupt.clone();
        ctrlc::set_handler(move || {
            if !handler.raise() {
                std::process::exit(EXIT_CODE);
            }
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    /// From here until the guard is dropped Ctrl-C asks for a stop instead of ending the program.
    pub fn busy(&self) -> Busy<'_> {
        self.0.store(BUSY, Ordering::SeqCst);
        Busy(self)
    }

    /// Whether a stop was asked for: finish the step and return what there is.
    pub fn pending(&self) -> bool {
        self.0.load(Ordering::SeqCst) == PENDING
    }

    /// Asks for a stop; false when nothing is under way or a stop was asked for already.
    pub fn raise(&self) -> bool {
        self.0.compare_exchange(BUSY, PENDING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Work is under way; see [`Interrupt::busy`].
#[derive(Debug)]
pub struct Busy<'a>(&'a Interrupt);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.0.store(IDLE, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_asked_for_once_and_only_while_busy() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.raise(), "idle");
        let busy = interrupt.busy();
        assert!(!interrupt.pending());
        assert!(interrupt.raise() && interrupt.pending());
        assert!(!interrupt.raise(), "the second one ends the program");
        drop(busy);
        assert!(!interrupt.pending());
    }
}
