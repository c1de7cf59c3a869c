//! What a checkpoint says about generating: where to stop and how to sample by default.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::sampling::SamplingOptions;

/// The defaults of `generation_config.json` and `config.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Every id that ends a text: the union of both files. Published files differ: one that only
    /// `config.json` names ends documents, those of `generation_config.json` end chat turns, too.
    pub eos_token_ids: BTreeSet<u32>,
    /// False asks for greedy decoding.
    pub do_sample: Option<bool>,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Nucleus sampling.
    pub top_p: Option<f32>,
    /// How many of the best tokens to sample from; 0 is all.
    pub top_k: Option<u32>,
    /// Least probability relative to the best token's.
    pub min_p: Option<f32>,
    /// Penalty on tokens of the prompt and the answer.
    pub repetition_penalty: Option<f32>,
    /// How many tokens to generate at most.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// What the files of a checkpoint say.
    ///
    /// # Errors
    /// `generation_config.json` is not JSON, or a field has a value that cannot be meant.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        const FILE: &str = "generation_config.json";
        let file = checkpoint.file(FILE).map(|bytes| serde_json::from_slice(bytes)).transpose();
        let file: Option<Value> =
            file.map_err(|e| Error::checkpoint(format!("{FILE}: not valid JSON: {e}")))?;
        Self::new(Some(checkpoint.config()), file.as_ref())
    }

    /// Read both files, as parsed JSON; either may be missing.
    pub fn new(config: Option<&Value>, generation_config: Option<&Value>) -> Result<Self> {
        let mut found = Self::default();
        if let Some(config) = config {
            found.add_eos("config.json", config)?;
            if let Some(text_config) = config.get("text_config") {
                found.add_eos("config.json: text_config", text_config)?;
            }
        }
        if let Some(fields) = generation_config {
            const FILE: &str = "generation_config.json";
            found.add_eos(FILE, fields)?;
            let float = |key| read(FILE, fields, key, "a number", Value::as_f64);
            found.do_sample = read(FILE, fields, "do_sample", "true or false", Value::as_bool)?;
            found.temperature = float("temperature")?.map(narrow);
            found.top_p = float("top_p")?.map(narrow);
            found.min_p = float("min_p")?.map(narrow);
            found.repetition_penalty = float("repetition_penalty")?.map(narrow);
            found.top_k =
                read(FILE, fields, "top_k", "a count", |value| value.as_u64()?.try_into().ok())?;
            found.max_new_tokens = read(FILE, fields, "max_new_tokens", "a count", |value| {
                value.as_u64()?.try_into().ok()
            })?;
        }
        Ok(found)
    }

    /// Sampling where a request asks for nothing else: greedy where the checkpoint says
    /// `do_sample: false`, temperature 1 where it says nothing.
    pub fn sampling(&self) -> SamplingOptions {
        let defaults = SamplingOptions::default();
        let temperature = self.temperature.unwrap_or(defaults.temperature);
        SamplingOptions {
            temperature: if self.do_sample == Some(false) { 0.0 } else { temperature },
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            ..defaults
        }
    }

    fn add_eos(&mut self, file: &str, fields: &Value) -> Result<()> {
        let id = |value: &Value| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| {
                Error::checkpoint(format!(
                    "{file}: eos_token_id has {value}, want a token id, a list of them or null"
                ))
            })
        };
        match fields.get("eos_token_id") {
            None | Some(Value::Null) => {}
            Some(Value::Array(ids)) => {
                for value in ids {
                    self.eos_token_ids.insert(id(value)?);
                }
            }
            Some(value) => {
                self.eos_token_ids.insert(id(value)?);
            }
        }
        Ok(())
    }
}

fn read<T>(
    file: &str,
    fields: &Value,
    key: &str,
    want: &str,
    convert: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let converted = convert(value);
            let wrong = || Error::checkpoint(format!("{file}: {key} is {value}, want {want}"));
            converted.map(Some).ok_or_else(wrong)
        }
    }
}

/// Options are f32; what does not fit becomes infinite and is refused by their check.
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn eos(config: Value, generation: Value) -> Vec<u32> {
        let found = GenerationConfig::new(Some(&config), Some(&generation)).unwrap();
        found.eos_token_ids.into_iter().collect()
    }

    #[test]
    fn eos_is_the_union_of_scalar_list_and_null() {
        assert_eq!(eos(json!({"eos_token_id": 2}), json!({"eos_token_id": [2, 11]})), [2, 11]);
        assert_eq!(eos(json!({"eos_token_id": [7, 3]}), json!({"eos_token_id": 11})), [3, 7, 11]);
        assert_eq!(eos(json!({"eos_token_id": null}), json!({})), [0; 0]);
        assert_eq!(eos(json!({"text_config": {"eos_token_id": 5}}), json!({})), [5]);
        assert_eq!(GenerationConfig::new(None, None).unwrap(), GenerationConfig::default());
    }

    #[test]
    fn defaults_come_from_the_checkpoint() {
        let file = json!({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05,
            "min_p": 0.1, "max_new_tokens": 512, "do_sample": true});
        let found = GenerationConfig::new(None, Some(&file)).unwrap();
        assert_eq!(found.max_new_tokens, Some(512));
        let options = found.sampling();
        assert_eq!((options.temperature, options.top_p, options.top_k), (0.6, 0.95, 20));
        assert_eq!((options.min_p, options.repetition_penalty), (0.1, 1.05));
        let greedy = GenerationConfig { do_sample: Some(false), ..found };
        assert_eq!(greedy.sampling().temperature, 0.0);
        assert_eq!(GenerationConfig::default().sampling().temperature, 1.0);
    }

    #[test]
    fn malformed_fields_are_named() {
        let error = |file: Value| GenerationConfig::new(None, Some(&file)).unwrap_err().to_string();
        assert_eq!(
            error(json!({"eos_token_id": [2, "x"]})),
            "generation_config.json: eos_token_id has \"x\", want a token id, a list of them or null"
        );
        assert_eq!(
            error(json!({"top_k": -1})),
            "generation_config.json: top_k is -1, want a count"
        );
        assert_eq!(
            error(json!({"do_sample": 1})),
            "generation_config.json: do_sample is 1, want true or false"
        );
    }
}
