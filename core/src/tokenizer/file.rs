//! What is checked in `tokenizer.json` before the tokenizers crate reads it: that crate panics on
//! some malformed sections, and a panic cannot be caught in a browser.

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};

/// The largest published files are near 20 MB.
const MAX_BYTES: usize = 256 << 20;

#[derive(Deserialize)]
struct Sections {
    model: Model,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    dropout: Option<f64>,
}

/// Refuse what would panic or give other ids at each call; returns the decoder section.
pub(super) fn check(json: &[u8]) -> Result<Value> {
    if json.len() > MAX_BYTES {
        return Err(Error::text(format!(
            "tokenizer.json: {} bytes, at most {MAX_BYTES} are read",
            json.len()
        )));
    }
    let sections: Sections = serde_json::from_slice(json)
        .map_err(|error| Error::text(format!("tokenizer.json: {error}")))?;
    if let Some(dropout) = sections.model.dropout
        && dropout != 0.0
    {
        return Err(Error::text(format!(
            "tokenizer.json: model.dropout is {dropout}, which gives other ids at each call; set it to null"
        )));
    }
    for (name, section) in
        [("normalizer", &sections.normalizer), ("pre_tokenizer", &sections.pre_tokenizer)]
    {
        if names(section, "Precompiled") {
            return Err(Error::text(format!(
                "tokenizer.json: {name} of type Precompiled is not supported; \
                 supported are byte-level BPE and byte-fallback BPE tokenizers"
            )));
        }
    }
    check_shape("post_processor", &sections.post_processor)?;
    Ok(sections.decoder)
}

fn check_shape(name: &str, section: &Value) -> Result<()> {
    match section {
        Value::Null | Value::Object(_) => Ok(()),
        _ => Err(Error::text(format!("tokenizer.json: {name} is not an object"))),
    }
}

fn names(section: &Value, kind: &str) -> bool {
    match section {
        Value::Object(fields) => {
            fields.get("type").and_then(Value::as_str) == Some(kind)
                || fields.values().any(|value| names(value, kind))
        }
        Value::Array(values) => values.iter().any(|value| names(value, kind)),
        _ => false,
    }
}
