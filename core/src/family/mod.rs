//! Families: each turns a config.json into a [`ModelSpec`]. Adding one is a file and a line of `FAMILIES`.

mod config;
mod nemotron_h;
mod pattern;
#[cfg(test)]
mod tests;

use crate::checkpoint::Tensors;
use crate::error::{Error, Result};
use crate::model::spec::ModelSpec;
pub(crate) use config::Config;
use serde_json::Value;

/// Reads a config, every key of which it answers for.
type Family = fn(&Config<'_>) -> Result<ModelSpec>;

/// `model_type` to family.
const FAMILIES: &[(&str, Family)] = &[("nemotron_h", nemotron_h::spec)];

/// Kinds that look like a supported one and are not, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("nemotron_h_puzzle", "its layers differ in width one by one, which is not supported"),
    ("nemotron_h_omni", "it takes images and sound; use the text model that it is built on"),
    ("NemotronH_Nano_VL_V2", "it takes images; use the text model that it is built on"),
];

/// The model that `config` describes. `tensors` are those of the checkpoint; a config alone is read with published names.
///
/// # Errors
/// The family is not supported, or a key is missing, contradictory, or changes the arithmetic and is not understood.
pub(crate) fn spec(config: &Value, tensors: Option<&Tensors>) -> Result<ModelSpec> {
    let object = config
        .as_object()
        .ok_or_else(|| Error::checkpoint("config.json: want an object of keys and values"))?;
    let kind = object.get("model_type").and_then(Value::as_str).ok_or_else(|| {
        Error::checkpoint("config.json: no model_type; is this a model's configuration?")
    })?;
    let Some((_, family)) = FAMILIES.iter().find(|(name, _)| *name == kind) else {
        let supported = FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let known = REFUSED.iter().find(|(name, _)| *name == kind);
        let hint = known.map_or(String::new(), |(_, reason)| format!(" ({reason})"));
        return Err(Error::checkpoint(format!(
            "config.json: model_type {kind:?} is not supported{hint}; supported: {supported}"
        )));
    };
    let config = Config::new(object, tensors);
    let spec = family(&config)?;
    config.finish()?;
    Ok(spec)
}
