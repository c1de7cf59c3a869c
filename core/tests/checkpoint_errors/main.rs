//! Every refusal of the loader, with its whole text.

mod configs;
mod files;
mod quantised;
#[path = "../support/mod.rs"]
mod support;
mod tensors;

use bytes::Bytes;
use serde_json::Value;
use support::*;

fn tiny() -> Files {
    Files::new(config())
}

/// The refusal of the small checkpoint with one key of its config changed.
fn with_key(key: &str, value: Value) -> String {
    tiny().key(key, value).refusal()
}

/// The refusal of the small checkpoint with another file for its tensors.
fn with_file(bytes: impl Into<Bytes>) -> String {
    let mut files = tiny().small();
    files.push(("model.safetensors".into(), bytes.into()));
    refusal(files)
}

#[test]
fn the_small_checkpoints_open() {
    tiny().open().unwrap();
    Files::quantised("NVFP4", &["lm_head"]).open().unwrap();
    Files::quantised("FP8", &["lm_head", "*.conv1d"]).open().unwrap();
}
