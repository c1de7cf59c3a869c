//! A source of weights that fails on the way, as a disk or a network does.

use crate::error::{Error, Result};
use crate::weight::{LocalFuture, Source};
use bytes::Bytes;
use std::ops::Range;

/// Serves zeros up to a place, then fails: what was loaded by then must be freed.
pub struct Broken(pub u64);

impl Source for Broken {
    fn read(&self, _file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        let answer = if range.end <= self.0 {
            // Tests ask for parts that fit memory.
            Ok(vec![0; (range.end - range.start) as usize].into())
        } else {
            Err(Error::device("the disk broke"))
        };
        Box::pin(std::future::ready(answer))
    }
}
