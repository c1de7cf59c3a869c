//! What a checkpoint holds against what its model reads.

use super::Checkpoint;
use super::format::{companion, describe_param};
use crate::error::{Error, Result};
use safetensors::Dtype;
use serde::Serialize;
use std::collections::BTreeSet;

/// A tensor that is known and not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// Its name.
    pub name: String,
    /// Its dtype as the file spells it.
    pub dtype: Dtype,
    /// Bytes on disk.
    pub bytes: u64,
    /// Why it is not run.
    pub reason: &'static str,
}

/// A checkpoint whose every tensor is accounted for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// Tensors that the model reads.
    pub read: usize,
    /// Their bytes on disk.
    pub read_bytes: u64,
    /// Tensors that it recognises and does not run.
    pub unused: Vec<Unused>,
}

impl Inventory {
    /// Bytes of all tensors on disk.
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.unused.iter().map(|u| u.bytes).sum::<u64>()
    }

    /// Number of all tensors.
    pub fn tensors(&self) -> usize {
        self.read + self.unused.len()
    }
}

/// Holds every tensor that the spec names to its shape and format, and every other tensor to a reason.
pub(super) fn take(checkpoint: &Checkpoint) -> Result<Inventory> {
    let mut read = BTreeSet::new();
    let mut read_bytes = 0;
    for weight in checkpoint.spec.weights() {
        let stored = checkpoint.describe(weight)?;
        for name in &weight.names {
            checkpoint.declared.check(name, stored.format)?;
        }
        read_bytes += stored.bytes();
        read.extend(stored.tensors.into_iter().map(|t| t.name));
    }
    for param in checkpoint.spec.params() {
        let stored = describe_param(&checkpoint.tensors, param)?;
        read_bytes += stored.bytes;
        read.insert(stored.name);
    }
    let mut inventory = Inventory { read: read.len(), read_bytes, unused: Vec::new() };
    let mut unread = Vec::new();
    for (name, entry) in checkpoint.tensors.iter().filter(|(name, _)| !read.contains(*name)) {
        match reason(checkpoint, name, &read) {
            Some(reason) => inventory.unused.push(Unused {
                name: name.clone(),
                dtype: entry.info.dtype,
                bytes: entry.info.bytes(),
                reason,
            }),
            None => unread.push(format!("`{name}` ({})", entry.info)),
        }
    }
    if unread.is_empty() { Ok(inventory) } else { Err(refuse(&unread, checkpoint.spec.family)) }
}

fn refuse(unread: &[String], family: &str) -> Error {
    let shown = unread.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    let more = match unread.len() {
        0..=3 => String::new(),
        n => format!(" and {} more", n - 3),
    };
    Error::checkpoint(format!(
        "nothing in {family} reads tensor {shown}{more}; config.json belongs to another checkpoint, or the model has parts that are not supported"
    ))
}

/// Why a tensor that nothing reads may be left.
fn reason(checkpoint: &Checkpoint, name: &str, read: &BTreeSet<String>) -> Option<&'static str> {
    let of_read = |suffix: &str| {
        let stem = name.strip_suffix(suffix);
        stem.is_some_and(|stem| read.contains(&companion(stem, "weight")))
    };
    if of_read(".input_scale") {
        return Some(
            "scales activations for quantised arithmetic; here activations are not quantised",
        );
    }
    if of_read(".k_scale") || of_read(".v_scale") {
        return Some("scales an FP8 key/value cache; here keys and values are not FP8");
    }
    let known = checkpoint.spec.unused.iter().find(|(prefix, _)| name.starts_with(prefix.as_str()));
    known.map(|(_, reason)| *reason)
}
