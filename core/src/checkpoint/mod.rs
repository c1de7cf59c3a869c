//! Checkpoints in the published Hugging Face layout: config.json, safetensors in one file or shards, quantised or not.
//!
//! Opening reads only headers and small files, and holds every tensor to the model that the config describes: what is
//! missing, misshapen, unread or contradictory is refused by name. Weights then come as planes over the files' own
//! bytes, so a mapped file is read once, by the back end that takes it.

mod declared;
mod format;
mod geometry;
mod header;
mod inventory;
mod json;
mod layout;
mod source;
mod synthetic;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::family;
use crate::model::spec::{ModelSpec, ParamRef, WeightRef};
use crate::weight::{Plane, Source, StoredPart, StoredWeight};
use bytes::Bytes;
use declared::{Declared, QUANT_CONFIG};
pub use format::{Role, Stored, StoredTensor};
pub use geometry::{Geometry, IndexEntry};
pub use header::{Header, LENGTH_BYTES, MAX_HEADER_BYTES, TensorInfo};
pub use inventory::{Inventory, Unused};
pub use json::number;
pub(crate) use layout::Tensors;
pub use layout::{INDEX, SINGLE, named_shards, shards};
use safetensors::Dtype;
use serde_json::Value;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Small files that belong to a checkpoint, where it has them.
pub const SMALL_FILES: [&str; 10] = [
    "config.json",
    QUANT_CONFIG,
    INDEX,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// An opened checkpoint.
pub struct Checkpoint {
    files: BTreeMap<String, Bytes>,
    config: Value,
    spec: ModelSpec,
    tensors: Tensors,
    declared: Declared,
    source: Rc<dyn Source>,
}

impl Checkpoint {
    /// Opens a folder. Weights are mapped, not read.
    ///
    /// # Errors
    /// A file cannot be read, or the checkpoint is not one that can be run exactly as published.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(dir: &std::path::Path) -> Result<Self> {
        use source::folder;
        let names = folder::names(dir)?;
        let opened = || {
            let mut files = BTreeMap::new();
            for name in SMALL_FILES.into_iter().filter(|n| names.contains(*n)) {
                files.insert(name.to_owned(), folder::read(&dir.join(name))?);
            }
            let mut shards = Vec::new();
            require_config(&files)?;
            for name in layout::shards(&names, files.get(INDEX).map(|b| &b[..]))? {
                let file = folder::map(&dir.join(&name))?;
                shards.push((name, file));
            }
            Self::from_shards(files, shards)
        };
        opened().map_err(|e| match e.kind() {
            crate::error::Kind::Io => e,
            _ => e.within(dir.display()),
        })
    }

    /// Opens files that are in memory: those of the embedded model.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_memory(files: Vec<(String, Bytes)>) -> Result<Self> {
        let mut files: BTreeMap<String, Bytes> = files.into_iter().collect();
        require_config(&files)?;
        let names = files.keys().cloned().collect();
        let index = files.get(INDEX).cloned();
        let mut shards = Vec::new();
        for name in layout::shards(&names, index.as_deref())? {
            let bytes = files.remove(&name).unwrap_or_default();
            shards.push((name, bytes.into()));
        }
        Self::from_shards(files, shards)
    }

    fn from_shards(
        files: BTreeMap<String, Bytes>,
        shards: Vec<(String, source::File)>,
    ) -> Result<Self> {
        let mut headers = Vec::new();
        for (name, file) in &shards {
            // A file's length in memory is below 2^64.
            let header =
                Header::parse(&file.bytes, file.bytes.len() as u64).map_err(|e| e.within(name))?;
            headers.push((name.clone(), header));
        }
        let source = source::Files(shards.into_iter().map(|(_, file)| file).collect());
        Self::from_source(files.into_iter().collect(), headers, Rc::new(source))
    }

    /// Opens a checkpoint whose tensors are fetched by range, as a browser does. `metadata` holds the small files,
    /// `files` the parsed header of every file of `source`, in its order.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_source(
        metadata: Vec<(String, Bytes)>,
        files: Vec<(String, Header)>,
        source: Rc<dyn Source>,
    ) -> Result<Self> {
        let metadata: BTreeMap<String, Bytes> = metadata.into_iter().collect();
        let config = json::parse("config.json", require_config(&metadata)?)?;
        let declared = Declared::new(&config, metadata.get(QUANT_CONFIG).map(|b| &b[..]))?;
        let tensors = Tensors::new(files, metadata.get(INDEX).map(|b| &b[..]))?;
        let spec = family::spec(&config, Some(&tensors))?;
        let opened = Self { files: metadata, config, spec, tensors, declared, source };
        opened.inventory()?;
        Ok(opened)
    }

    /// A checkpoint of `geometry` whose weights are random, the same for the same `seed`, and made as they are read.
    ///
    /// # Errors
    /// The geometry is not valid.
    pub fn synthetic(geometry: &Geometry, seed: u64) -> Result<Self> {
        let source = synthetic::Synthetic::new(geometry.index()?, seed);
        let mut header = Header::default();
        for (entry, range) in source.tensors() {
            let (dtype, shape) = (entry.dtype, entry.shape.clone());
            let info = TensorInfo { dtype, shape, range: range.clone() };
            header.tensors.insert(entry.name.clone(), info);
        }
        let files = vec![(layout::SINGLE.to_owned(), header)];
        Self::from_source(geometry::small_files(geometry), files, Rc::new(source))
    }

    /// The model that the checkpoint describes.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// config.json.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// One of [`SMALL_FILES`], where the checkpoint has it.
    pub fn file(&self, name: &str) -> Option<&Bytes> {
        self.files.get(name)
    }

    /// What the checkpoint holds against what the model reads.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, unread or not stored as declared; opening has refused such a checkpoint already.
    pub fn inventory(&self) -> Result<Inventory> {
        inventory::take(self)
    }

    /// How `weight` is stored, without reading it.
    ///
    /// # Errors
    /// A tensor is missing or not of a supported form.
    pub fn describe(&self, weight: &WeightRef) -> Result<Stored> {
        format::describe(&self.tensors, weight)
    }

    /// How `param` is stored, without reading it.
    ///
    /// # Errors
    /// The tensor is missing, misshapen or no float.
    pub fn describe_param(&self, param: &ParamRef) -> Result<StoredTensor> {
        format::describe_param(&self.tensors, param)
    }

    /// `weight` as stored. Only the scales of whole matrices are read here; block scales are checked for NaN as the
    /// back end reads them.
    ///
    /// # Errors
    /// As [`Checkpoint::describe`]; a scale cannot be read, or is not a positive number.
    pub async fn weight(&self, weight: &WeightRef) -> Result<StoredWeight> {
        let stored = self.describe(weight)?;
        let mut parts: Vec<StoredPart> = Vec::with_capacity(weight.names.len());
        for tensor in stored.tensors {
            let plane = self.plane(&tensor.name)?;
            match (tensor.role, parts.last_mut()) {
                (Role::BlockScales, Some(part)) => {
                    part.scales = Some(source::checked_scales(plane, &tensor.name));
                }
                (Role::MatrixScale, Some(part)) => part.scale = scale(&tensor.name, plane).await?,
                _ => {
                    parts.push(StoredPart {
                        name: tensor.name,
                        data: plane,
                        scales: None,
                        scale: 1.0,
                    });
                }
            }
        }
        let name = weight.names.first().cloned().unwrap_or_default();
        let (rows, cols, format) = (weight.rows, weight.cols, stored.format);
        Ok(StoredWeight { name, rows, cols, format, parts })
    }

    /// The `rows * cols` elements of `param`, widened to f32.
    ///
    /// # Errors
    /// As [`Checkpoint::describe_param`]; the bytes cannot be read.
    pub async fn param(&self, param: &ParamRef) -> Result<Vec<f32>> {
        let stored = self.describe_param(param)?;
        Ok(widen(stored.dtype, &self.plane(&param.name)?.all().await?))
    }

    fn plane(&self, name: &str) -> Result<Plane> {
        let entry = self.tensors.get(name);
        let entry =
            entry.ok_or_else(|| Error::checkpoint(format!("tensor `{name}` is missing")))?;
        let range = entry.info.range.clone();
        Ok(Plane { source: self.source.clone(), file: entry.file, range })
    }
}

fn require_config(files: &BTreeMap<String, Bytes>) -> Result<&Bytes> {
    files.get("config.json").ok_or_else(|| {
        Error::checkpoint("config.json is missing; is this the folder of a checkpoint?")
    })
}

/// The scale of a matrix: a finite number above 0, or all its weights would be wrong.
async fn scale(name: &str, plane: Plane) -> Result<f32> {
    let value = widen(Dtype::F32, &plane.all().await?).first().copied().unwrap_or(f32::NAN);
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(Error::checkpoint(format!(
        "tensor `{name}`: the scale is {value}, want a finite number above 0; the checkpoint is damaged, download it again"
    )))
}

fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter();
    match dtype {
        Dtype::BF16 => halves().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F16 => halves().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}
