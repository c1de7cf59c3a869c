//! The published models without their weights: config.json and how each tensor is stored.

use super::declared::Declared;
use super::format::companion;
use super::{QUANT_CONFIG, json};
use crate::error::{Error, Result};
use crate::family;
use crate::model::spec::{MixerSpec, ModelSpec, ParamRef, WeightRef};
use crate::weight::{Format, NVFP4_GROUP};
use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value;

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../fixtures/geometries/", $name, ".json")))),*]
    };
}

/// Name and text of every geometry that ships.
const SHIPPED: &[(&str, &str)] = shipped![
    "nemotron-3-nano-bf16",
    "nemotron-3-nano-fp8",
    "nemotron-3-nano-nvfp4",
    "nemotron-3-nano-4b",
    "nemotron-3-nano-4b-nvfp4",
    "nemotron-nano-9b-v2",
    "nemotron-h-8b",
    "nemotron-3-super-120b-nvfp4",
    "granite-350m-like",
];

/// A model without its weights.
#[derive(Clone, Debug)]
pub struct Geometry {
    file: GeometryFile,
    spec: ModelSpec,
}

/// A geometry as its file says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GeometryFile {
    /// One sentence: which model, where its numbers come from.
    about: String,
    /// What is not known from a public copy of the checkpoint.
    #[serde(default)]
    assumed: Vec<String>,
    config: Value,
    /// Dtype of what no other rule names.
    dtype: Dtype,
    /// Dtypes of single tensors, by pattern; the first that matches holds.
    #[serde(default)]
    dtypes: Vec<(String, Dtype)>,
    /// modelopt's statement, as in its own file.
    #[serde(default)]
    hf_quant_config: Option<Value>,
    /// Formats of matrices by pattern, where modelopt's statement lists each; the first that matches holds.
    #[serde(default)]
    formats: Vec<(String, Format)>,
    /// Other tensors in the files that the model does not run; `{0..n}` in a name stands for n numbers.
    #[serde(default)]
    extra: Vec<(String, Dtype, Vec<usize>)>,
}

/// A tensor that the published checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its name.
    pub name: String,
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Columns of the matrix that it belongs to, which set the scale of generated values.
    pub(super) fan_in: usize,
}

impl IndexEntry {
    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        // Lossless on every target there is, where a product of usize might overflow.
        let elements: u64 = self.shape.iter().map(|&d| d as u64).product();
        elements * self.dtype.bitsize() as u64 / 8
    }
}

impl Geometry {
    /// Names of the geometries that ship.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// A geometry that ships.
    ///
    /// # Errors
    /// There is none of that name; the text lists them.
    pub fn named(name: &str) -> Result<Self> {
        let Some((_, text)) = SHIPPED.iter().find(|(known, _)| *known == name) else {
            let names = Self::names().collect::<Vec<_>>().join(", ");
            return Err(Error::request(format!("no geometry {name:?}; there are: {names}")));
        };
        Self::from_json(name, text.as_bytes())
    }

    /// A geometry from the text of a file in the form of those that ship.
    ///
    /// # Errors
    /// The text or its config is not valid; `name` is named.
    pub fn from_json(name: &str, text: &[u8]) -> Result<Self> {
        let file: GeometryFile = serde_json::from_value(json::parse(name, text)?)
            .map_err(|e| Error::checkpoint(format!("{name}: {e}")))?;
        let spec = family::spec(&file.config, None).map_err(|e| e.within(name))?;
        Ok(Self { file, spec })
    }

    /// A geometry from the text of a config.json alone, everything stored as its dtype says.
    ///
    /// # Errors
    /// The config is not valid.
    pub fn from_config(text: &[u8]) -> Result<Self> {
        let config = json::parse("config.json", text)?;
        let dtype = config.get("dtype").or(config.get("torch_dtype")).and_then(Value::as_str);
        let dtype = match dtype {
            Some("float32") => Dtype::F32,
            Some("float16") => Dtype::F16,
            Some("bfloat16") | None => Dtype::BF16,
            Some(other) => {
                return Err(Error::checkpoint(format!(
                    "config.json: dtype is {other:?}, want float32, float16 or bfloat16"
                )));
            }
        };
        let spec = family::spec(&config, None)?;
        let file = GeometryFile {
            about: "a config.json".into(),
            assumed: vec!["every tensor is stored as dtype says".into()],
            config,
            dtype,
            dtypes: Vec::new(),
            hf_quant_config: None,
            formats: Vec::new(),
            extra: Vec::new(),
        };
        Ok(Self { file, spec })
    }

    /// One sentence: which model, where its numbers come from.
    pub fn about(&self) -> &str {
        &self.file.about
    }

    /// What is not known from a public copy of the checkpoint.
    pub fn assumed(&self) -> &[String] {
        &self.file.assumed
    }

    /// config.json.
    pub fn config(&self) -> &Value {
        &self.file.config
    }

    /// hf_quant_config.json, where the checkpoint has one.
    pub fn quant_config(&self) -> Option<&Value> {
        self.file.hf_quant_config.as_ref()
    }

    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Parameters of the model, quantised ones counted unpacked; what it does not run is left out.
    pub fn parameters(&self) -> u64 {
        let product = |sizes: &[usize]| sizes.iter().map(|&n| n as u64).product::<u64>();
        let matrices =
            self.spec.weights().into_iter().map(|w| product(&[w.names.len(), w.rows, w.cols]));
        let small = self.spec.params().into_iter().map(|p| product(&[p.rows, p.cols]));
        matrices.chain(small).sum()
    }

    /// Every tensor of the published checkpoint, in order of name within the order of loading.
    ///
    /// # Errors
    /// The statement on quantisation is not valid.
    pub fn index(&self) -> Result<Vec<IndexEntry>> {
        let text = self.file.hf_quant_config.as_ref().map(Value::to_string);
        let declared = Declared::new(&self.file.config, text.as_ref().map(String::as_bytes))?;
        let quantisable = quantisable(&self.spec);
        let mut list = Vec::new();
        for weight in self.spec.weights() {
            for name in &weight.names {
                let format = match quantisable.iter().any(|w| std::ptr::eq(*w, weight)) {
                    true => self.format(name, &declared),
                    false => None,
                };
                self.push_matrix(&mut list, name, weight, format);
            }
        }
        for param in self.spec.params() {
            list.push(self.param(param));
        }
        for (pattern, dtype, shape) in &self.file.extra {
            for name in numbered(pattern) {
                list.push(IndexEntry { name, dtype: *dtype, shape: shape.clone(), fan_in: 1 });
            }
        }
        Ok(list)
    }

    /// The quantised format of a linear layer's matrix, if it has one.
    fn format(&self, name: &str, declared: &Declared) -> Option<Format> {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let rule = self.file.formats.iter().find(|(p, _)| super::declared::excludes(p, module));
        rule.map(|(_, format)| *format).or_else(|| declared.expected(module))
    }

    fn dtype(&self, name: &str) -> Dtype {
        let rule = self.file.dtypes.iter().find(|(p, _)| super::declared::excludes(p, name));
        rule.map_or(self.file.dtype, |(_, dtype)| *dtype)
    }

    fn push_matrix(
        &self,
        list: &mut Vec<IndexEntry>,
        name: &str,
        weight: &WeightRef,
        format: Option<Format>,
    ) {
        let (rows, cols) = (weight.rows, weight.cols);
        let mut push = |name: String, dtype, shape: &[usize]| {
            list.push(IndexEntry { name, dtype, shape: shape.to_vec(), fan_in: cols });
        };
        let part = |suffix| companion(name, suffix);
        match format {
            Some(Format::Nvfp4) => {
                push(name.into(), Dtype::U8, &[rows, cols / 2]);
                push(part("weight_scale"), Dtype::F8_E4M3, &[rows, cols / NVFP4_GROUP]);
                push(part("weight_scale_2"), Dtype::F32, &[]);
                push(part("input_scale"), Dtype::F32, &[]);
            }
            Some(Format::Fp8) => {
                push(name.into(), Dtype::F8_E4M3, &[rows, cols]);
                push(part("weight_scale"), Dtype::F32, &[]);
                push(part("input_scale"), Dtype::F32, &[]);
            }
            Some(Format::F32) => push(name.into(), Dtype::F32, &[rows, cols]),
            Some(Format::F16) => push(name.into(), Dtype::F16, &[rows, cols]),
            Some(Format::BF16) => push(name.into(), Dtype::BF16, &[rows, cols]),
            None => push(name.into(), self.dtype(name), &[rows, cols]),
        }
    }

    fn param(&self, param: &ParamRef) -> IndexEntry {
        let shape = match (param.rows, param.name.ends_with("conv1d.weight")) {
            (1, false) => vec![param.cols],
            (rows, true) => vec![rows, 1, param.cols],
            (rows, false) => vec![rows, param.cols],
        };
        let name = param.name.clone();
        IndexEntry { dtype: self.dtype(&name), name, shape, fan_in: param.cols }
    }
}

/// The names that `a{0..n}b` stands for; any other text stands for itself.
fn numbered(pattern: &str) -> Vec<String> {
    let parts = || {
        let (before, rest) = pattern.split_once("{0..")?;
        let (count, after) = rest.split_once('}')?;
        Some((before, count.parse::<usize>().ok()?, after))
    };
    match parts() {
        Some((before, count, after)) => (0..count).map(|n| format!("{before}{n}{after}")).collect(),
        None => vec![pattern.to_owned()],
    }
}

/// Weights of linear layers; the embedding and the router are none, so quantisation passes them by.
fn quantisable(spec: &ModelSpec) -> Vec<&WeightRef> {
    let mixers = || spec.blocks.iter().flat_map(|b| &b.mixers);
    let routers: Vec<&WeightRef> = mixers()
        .filter_map(|m| match m {
            MixerSpec::Moe(moe) => Some(&moe.router),
            _ => None,
        })
        .collect();
    let plain = |w: &&WeightRef| {
        !std::ptr::eq(*w, &raw const spec.embedding)
            && !routers.iter().any(|r| std::ptr::eq(*r, *w))
    };
    spec.weights().into_iter().filter(plain).collect()
}

/// The file name of modelopt's statement and its text, for a checkpoint made of a geometry.
pub(super) fn small_files(geometry: &Geometry) -> Vec<(String, bytes::Bytes)> {
    let mut files = vec![("config.json".to_owned(), geometry.config().to_string().into())];
    if let Some(quant) = geometry.quant_config() {
        files.push((QUANT_CONFIG.to_owned(), quant.to_string().into()));
    }
    files
}
