//! config.json, read key by key: what a family does not ask for is known to be inert, reported, or refused.

use crate::checkpoint::{Tensors, number};
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Largest width or count that is believed; keeps products of two from overflowing.
const MAX_SIZE: usize = 1 << 24;

/// Keys that say nothing about the arithmetic of any family.
const INERT: &[&str] = &[
    "_name_or_path",
    "_attn_implementation_autoset",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "num_logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "quantization_config",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_bfloat16",
    "use_cache",
];

/// Parts of the names of keys that change the arithmetic in some family.
const ARITHMETIC: &[&str] = &[
    "_multiplier",
    "scal",
    "rope",
    "norm",
    "act",
    "window",
    "softcap",
    "bias",
    "residual",
    "expert",
];

/// The keys of a config.json.
pub(crate) struct Config<'a> {
    keys: &'a Map<String, Value>,
    tensors: Option<&'a Tensors>,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Config<'a> {
    /// Reads `keys`; `tensors` are the checkpoint's, where there is one.
    pub fn new(keys: &'a Map<String, Value>, tensors: Option<&'a Tensors>) -> Self {
        Self { keys, tensors, asked: RefCell::default() }
    }

    /// Whether the checkpoint holds a tensor; a config alone holds none.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.is_some_and(|t| t.has(name))
    }

    /// How many tensors the checkpoint holds.
    pub fn tensor_count(&self) -> Option<usize> {
        self.tensors.map(Tensors::count)
    }

    /// The value under any of `names`, spellings of one key; null counts as absent. Spellings that disagree are refused.
    pub fn get(&self, names: &[&'static str]) -> Result<Option<(&'static str, &'a Value)>> {
        self.asked.borrow_mut().extend(names);
        let mut found: Option<(&'static str, &Value)> = None;
        for name in names {
            let Some(value) = self.keys.get(*name).filter(|v| !v.is_null()) else { continue };
            match found {
                Some((first, other)) if other != value => {
                    return Err(Error::checkpoint(format!(
                        "config.json: {first} is {other} and {name} is {value}, two spellings of one key"
                    )));
                }
                Some(_) => {}
                None => found = Some((name, value)),
            }
        }
        Ok(found)
    }

    /// Marks keys as known to change nothing.
    pub fn inert(&self, names: &[&'static str]) {
        self.asked.borrow_mut().extend(names);
    }

    /// A count or width of at least 1, or `default`.
    pub fn size(&self, names: &[&'static str], default: usize) -> Result<usize> {
        match self.count(names, default)? {
            0 => Err(Error::checkpoint(format!("config.json: {} is 0, want at least 1", names[0]))),
            n => Ok(n),
        }
    }

    /// A count or width, or `default`.
    pub fn count(&self, names: &[&'static str], default: usize) -> Result<usize> {
        let Some((name, value)) = self.get(names)? else { return Ok(default) };
        let whole = value.as_u64().and_then(|v| usize::try_from(v).ok()).filter(|v| *v <= MAX_SIZE);
        whole.ok_or_else(|| wrong(name, value, &format!("a whole number up to {MAX_SIZE}")))
    }

    /// True or false, or `default`.
    pub fn flag(&self, names: &[&'static str], default: bool) -> Result<bool> {
        let Some((name, value)) = self.get(names)? else { return Ok(default) };
        value.as_bool().ok_or_else(|| wrong(name, value, "true or false"))
    }

    /// A finite number, or `default`.
    pub fn float(&self, names: &[&'static str], default: f32) -> Result<f32> {
        let Some((name, value)) = self.get(names)? else { return Ok(default) };
        // Configs give f64; the arithmetic is f32.
        let narrowed = number(value).map(|v| v as f32).filter(|v| v.is_finite());
        narrowed.ok_or_else(|| wrong(name, value, "a number"))
    }

    /// A text, or `default`.
    pub fn text(&self, names: &[&'static str], default: &'a str) -> Result<&'a str> {
        let Some((name, value)) = self.get(names)? else { return Ok(default) };
        value.as_str().ok_or_else(|| wrong(name, value, "a text"))
    }

    /// Two numbers, the upper one possibly infinite, or `default`.
    pub fn limits(&self, names: &[&'static str], default: [f32; 2]) -> Result<[f32; 2]> {
        let Some((name, value)) = self.get(names)? else { return Ok(default) };
        let pair: Option<Vec<f64>> = value.as_array().and_then(|l| l.iter().map(number).collect());
        match pair.as_deref() {
            Some(&[low, high]) if low >= 0.0 && low.is_finite() && high >= low => {
                Ok([low as f32, high as f32])
            }
            _ => Err(wrong(name, value, "[lower, upper], where upper may be Infinity")),
        }
    }

    /// Refuses a key whose presence means arithmetic that is not supported.
    pub fn absent(&self, name: &'static str, meaning: &str) -> Result<()> {
        match self.get(&[name])? {
            Some((_, value)) if *value != Value::Bool(false) => Err(Error::checkpoint(format!(
                "config.json: {name} is {value} ({meaning}), which is not supported"
            ))),
            _ => Ok(()),
        }
    }

    /// Answers for the keys that nothing asked for.
    pub fn finish(&self) -> Result<()> {
        let asked = self.asked.borrow();
        for (key, value) in self.keys {
            let known = asked.contains(key.as_str()) || INERT.contains(&key.as_str());
            if known || value.is_null() || *value == Value::Bool(false) {
                continue;
            }
            if ARITHMETIC.iter().any(|part| key.contains(part)) {
                return Err(Error::checkpoint(format!(
                    "config.json: {key} is {} and may change the arithmetic, but is not understood",
                    brief(value)
                )));
            }
            tracing::warn!(key = key.as_str(), value = %brief(value), "config.json: unknown key, ignored");
        }
        Ok(())
    }
}

/// The error for a value of the wrong kind.
fn wrong(name: &str, value: &Value, want: &str) -> Error {
    Error::checkpoint(format!("config.json: {name} is {}, want {want}", brief(value)))
}

/// A value as errors print it: whole if short.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
