//! The kind of every layer, from a pattern of letters or a list of names.

use super::Config;
use crate::error::{Error, Result};
use serde_json::Value;

/// What a block's one mixer is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Mamba2,
    Attention,
    Mlp,
    Moe,
}

/// The kinds that `hybrid_override_pattern` or `layers_block_type` gives; both may be there if they agree.
pub(super) fn kinds(config: &Config<'_>) -> Result<Vec<Kind>> {
    let pattern = config.text(&["hybrid_override_pattern"], "")?;
    let letters = pattern.chars().enumerate().map(|(at, letter)| letter_kind(pattern, at, letter));
    let mut kinds = letters.collect::<Result<Vec<_>>>()?;
    if let Some((key, list)) = config.get(&["layers_block_type"])? {
        let names = list.as_array().ok_or_else(|| {
            Error::checkpoint(format!("config.json: {key} is {list}, want a list of names"))
        })?;
        let named = names.iter().enumerate().map(|(at, name)| named_kind(at, name));
        let named = named.collect::<Result<Vec<_>>>()?;
        if !kinds.is_empty() && kinds != named {
            return Err(Error::checkpoint(
                "config.json: hybrid_override_pattern and layers_block_type disagree",
            ));
        }
        kinds = named;
    }
    if kinds.is_empty() {
        return Err(Error::checkpoint(
            "config.json: neither hybrid_override_pattern nor layers_block_type says what the layers are",
        ));
    }
    match config.count(&["num_hidden_layers"], kinds.len())? {
        n if n == kinds.len() => Ok(kinds),
        n => Err(Error::checkpoint(format!(
            "config.json: num_hidden_layers is {n}, but the pattern has {} layers",
            kinds.len()
        ))),
    }
}

fn letter_kind(pattern: &str, at: usize, letter: char) -> Result<Kind> {
    match letter {
        'M' => Ok(Kind::Mamba2),
        '*' => Ok(Kind::Attention),
        '-' => Ok(Kind::Mlp),
        'E' => Ok(Kind::Moe),
        _ => Err(Error::checkpoint(format!(
            "config.json: hybrid_override_pattern has {letter:?} at position {at} of {}, want M (mamba), * (attention), - (mlp) or E (experts)",
            pattern.chars().count()
        ))),
    }
}

fn named_kind(at: usize, name: &Value) -> Result<Kind> {
    match name.as_str() {
        Some("mamba" | "linear_attention") => Ok(Kind::Mamba2),
        Some("attention" | "full_attention") => Ok(Kind::Attention),
        Some("mlp") => Ok(Kind::Mlp),
        Some("moe") => Ok(Kind::Moe),
        _ => Err(Error::checkpoint(format!(
            "config.json: layers_block_type has {name} at position {at}, want mamba, attention, mlp or moe"
        ))),
    }
}
