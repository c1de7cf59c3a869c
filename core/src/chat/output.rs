//! A writer that stops a template which writes too much.

use std::io;

use crate::error::{Error, Result};

pub(super) struct Bounded {
    text: Vec<u8>,
    limit: usize,
    overflowed: bool,
}

impl Bounded {
    pub fn new(limit: usize) -> Self {
        Self { text: Vec::new(), limit, overflowed: false }
    }

    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    pub fn into_text(self) -> Result<String> {
        String::from_utf8(self.text).map_err(|error| Error::text(format!("chat template: {error}")))
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            self.overflowed = true;
            return Err(io::Error::other("output limit"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
