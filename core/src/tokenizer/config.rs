//! The parts of `tokenizer_config.json` that change ids.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, Result};

const FILE: &str = "tokenizer_config.json";

#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    pub add_bos_token: Option<bool>,
    pub add_eos_token: Option<bool>,
    /// `bos_token`, `eos_token`, ...: name to text.
    pub special_tokens: BTreeMap<String, String>,
}

impl TokenizerConfig {
    pub fn new(json: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(json)
            .map_err(|error| Error::text(format!("{FILE}: {error}")))?;
        let Value::Object(fields) = value else {
            return Err(Error::text(format!("{FILE}: the file is not a JSON object")));
        };
        let mut config = Self::default();
        for (key, value) in &fields {
            match key.as_str() {
                "add_bos_token" => config.add_bos_token = flag(key, value)?,
                "add_eos_token" => config.add_eos_token = flag(key, value)?,
                _ if key.ends_with("_token") => {
                    if let Some(text) = special_token(key, value)? {
                        config.special_tokens.insert(key.clone(), text);
                    }
                }
                _ => {}
            }
        }
        Ok(config)
    }
}

fn flag(key: &str, value: &Value) -> Result<Option<bool>> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(flag) => Ok(Some(*flag)),
        other => Err(Error::text(format!("{FILE}: {key} is {other}, want true or false"))),
    }
}

/// A special token is a string, or an object that has the string as `content`.
fn special_token(key: &str, value: &Value) -> Result<Option<String>> {
    match value {
        Value::Null | Value::Bool(_) => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Object(fields) => match fields.get("content") {
            Some(Value::String(text)) => Ok(Some(text.clone())),
            _ => Err(Error::text(format!("{FILE}: {key} is an object without a string `content`"))),
        },
        other => Err(Error::text(format!(
            "{FILE}: {key} is {other}, want a string or an object with `content`"
        ))),
    }
}
