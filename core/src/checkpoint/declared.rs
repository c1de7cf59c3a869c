//! What a checkpoint says of its quantisation, to hold the tensors to it. The tensors decide; a contradiction is refused.

use super::json;
use crate::error::{Error, Result};
use crate::weight::{Format, NVFP4_GROUP};
use serde_json::Value;
use std::collections::BTreeMap;

/// File in which modelopt says what it quantised.
pub const QUANT_CONFIG: &str = "hf_quant_config.json";

/// One statement about the whole checkpoint.
#[derive(Debug)]
struct Statement {
    place: &'static str,
    algo: Algo,
    exclude: Vec<String>,
    layers: BTreeMap<String, Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algo {
    None,
    All(Format),
    Mixed,
}

/// Every statement found: `hf_quant_config.json` and `quantization_config` of config.json.
#[derive(Debug, Default)]
pub(super) struct Declared {
    statements: Vec<Statement>,
}

impl Declared {
    /// Reads the statements.
    pub fn new(config: &Value, quant_config: Option<&[u8]>) -> Result<Self> {
        let mut statements = Vec::new();
        if let Some(bytes) = quant_config {
            let value = json::parse(QUANT_CONFIG, bytes)?;
            let inner = value.get("quantization").ok_or_else(|| {
                Error::checkpoint(format!("{QUANT_CONFIG}: no `quantization`; download it again"))
            })?;
            statements.push(statement(QUANT_CONFIG, inner, "exclude_modules")?);
        }
        if config.get("quantization").is_some_and(Value::is_object) {
            return Err(Error::checkpoint(
                "config.json: `quantization` says that MLX quantised this checkpoint, which is not supported; use the original one",
            ));
        }
        if let Some(inner) = config.get("quantization_config").filter(|v| !v.is_null()) {
            let method = inner.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
            if method != "modelopt" {
                return Err(Error::checkpoint(format!(
                    "config.json: quantised by {method}, which is not supported; use NVIDIA's modelopt checkpoint (NVFP4 or FP8) or the unquantised one"
                )));
            }
            statements.push(statement("config.json quantization_config", inner, "ignore")?);
        }
        Ok(Self { statements })
    }

    /// The format that the first statement gives a linear layer.
    pub fn expected(&self, module: &str) -> Option<Format> {
        let statement = self.statements.first()?;
        match statement.algo {
            Algo::Mixed => statement.layers.get(module).copied(),
            Algo::All(format) => (!statement.excludes(module)).then_some(format),
            Algo::None => None,
        }
    }

    /// Holds one tensor to every statement.
    pub fn check(&self, tensor: &str, format: Format) -> Result<()> {
        let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
        self.statements.iter().try_for_each(|s| s.check(module, format))
    }
}

impl Statement {
    fn check(&self, module: &str, format: Format) -> Result<()> {
        let quantised = matches!(format, Format::Nvfp4 | Format::Fp8);
        let want = match self.algo {
            Algo::Mixed => self.layers.get(module).copied(),
            Algo::All(all) => (quantised && !self.excludes(module)).then_some(all),
            Algo::None => None,
        };
        // A statement about all modules means all that are linear layers, so an unquantised embedding or router
        // contradicts nothing; a statement about this very module does bind.
        let said = match want {
            Some(want) if want == format => return Ok(()),
            Some(want) => format!("says {want}"),
            None if !quantised => return Ok(()),
            None if self.excludes(module) => "excludes it from quantisation".into(),
            None => "does not say that it is quantised".into(),
        };
        Err(Error::checkpoint(format!(
            "tensor `{module}.weight` is stored as {format}, but {} {said}; download the checkpoint again",
            self.place
        )))
    }

    fn excludes(&self, module: &str) -> bool {
        self.exclude.iter().any(|pattern| excludes(pattern, module))
    }
}

/// Whether `pattern` covers `module`: `*` stands for any text; without one, whole dotted segments match.
pub(super) fn excludes(pattern: &str, module: &str) -> bool {
    if pattern.contains('*') {
        return glob(pattern.as_bytes(), module.as_bytes());
    }
    module.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Matches `*` with one remembered position, so the time is bounded by the product of the lengths.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(byte) if *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((after, from)) => {
                    (p, t) = (after, from + 1);
                    star = Some((after, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

fn statement(place: &'static str, value: &Value, exclude: &str) -> Result<Statement> {
    let algo = match value.get("quant_algo") {
        None | Some(Value::Null) => Algo::None,
        Some(v) if v == "MIXED_PRECISION" => Algo::Mixed,
        Some(v) => Algo::All(format(place, "quant_algo", v)?),
    };
    if let Some(size) = value.get("group_size").and_then(Value::as_u64)
        && algo == Algo::All(Format::Nvfp4)
        && usize::try_from(size) != Ok(NVFP4_GROUP)
    {
        return Err(Error::checkpoint(format!(
            "{place}: group_size is {size}, want {NVFP4_GROUP}"
        )));
    }
    let mut layers = BTreeMap::new();
    for (name, entry) in
        value.get("quantized_layers").and_then(Value::as_object).into_iter().flatten()
    {
        let algo = entry.get("quant_algo").unwrap_or(&Value::Null);
        layers.insert(name.clone(), format(place, name, algo)?);
    }
    let list = value.get(exclude).and_then(Value::as_array).into_iter().flatten();
    let exclude = list.filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(Statement { place, algo, exclude, layers })
}

fn format(place: &str, key: &str, algo: &Value) -> Result<Format> {
    match algo.as_str() {
        Some("NVFP4" | "W4A16_NVFP4") => Ok(Format::Nvfp4),
        Some("FP8") => Ok(Format::Fp8),
        _ => Err(Error::checkpoint(format!(
            "{place}: {key} is {algo}, which is not supported; want NVFP4, FP8 or MIXED_PRECISION of both"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::excludes;

    #[test]
    fn exclusions_match_whole_segments_or_wildcards() {
        let cases = [
            ("lm_head", "lm_head", true),
            ("backbone.layers.4", "backbone.layers.4.mixer.in_proj", true),
            ("backbone.layers.4", "backbone.layers.41.mixer.in_proj", false),
            ("backbone.layers.4*", "backbone.layers.41.mixer.in_proj", true),
            ("*.conv1d", "backbone.layers.0.mixer.conv1d", true),
            ("*.conv1d", "backbone.layers.0.mixer.conv1d.x", false),
            ("*a*b*", "xxaybz", true),
            ("*a*b", "xxbya", false),
            ("", "lm_head", false),
        ];
        for (pattern, module, want) in cases {
            assert_eq!(excludes(pattern, module), want, "{pattern} {module}");
        }
    }
}
