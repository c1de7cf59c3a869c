//! Which files of a folder hold a checkpoint's tensors, and which tensor is where.

use super::header::{Header, TensorInfo};
use super::json;
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The one file of a checkpoint without shards.
pub const SINGLE: &str = "model.safetensors";
/// Says which shard holds which tensor.
pub const INDEX: &str = "model.safetensors.index.json";

/// Names of the files that hold tensors, given the names in the folder and the index if there is one.
///
/// # Errors
/// The index is damaged, a shard is missing, or the weights are in a form that is not read.
pub fn shards(names: &BTreeSet<String>, index: Option<&[u8]>) -> Result<Vec<String>> {
    let Some(index) = index else {
        return match names.contains(SINGLE) {
            true => Ok(vec![SINGLE.into()]),
            false => Err(no_weights(names)),
        };
    };
    let shards = named_shards(index)?;
    if let Some(missing) = shards.iter().find(|s| !names.contains(*s)) {
        return Err(Error::checkpoint(format!(
            "{missing} is missing: {INDEX} names it among {} shards; download it into the same folder",
            shards.len()
        )));
    }
    if names.contains(SINGLE) && !shards.contains(SINGLE) {
        return Err(Error::checkpoint(format!(
            "{SINGLE} is here beside {INDEX}, which does not name it; remove the one that is out of date"
        )));
    }
    Ok(shards.into_iter().collect())
}

/// Names of the files that an index says hold tensors.
///
/// # Errors
/// The index is damaged.
pub fn named_shards(index: &[u8]) -> Result<BTreeSet<String>> {
    Ok(weight_map(index)?.into_values().collect())
}

/// The error for a folder without safetensors, with what was found instead.
fn no_weights(names: &BTreeSet<String>) -> Error {
    let ending = |ends: &[&str]| names.iter().find(|n| ends.iter().any(|e| n.ends_with(e)));
    let text = if let Some(shard) =
        names.iter().find(|n| n.starts_with("model-") && n.ends_with(".safetensors"))
    {
        format!("{INDEX} is missing though shards such as {shard} are here; download it too")
    } else if let Some(file) = ending(&[".gguf"]) {
        format!("{file} is GGUF, which is not read; use the original safetensors checkpoint")
    } else if let Some(file) = ending(&[".bin", ".pth", ".pt"]) {
        format!(
            "{file} is a pickled PyTorch file, which is not read since it can run code; convert it with save_pretrained, which writes safetensors"
        )
    } else if let Some(file) = ending(&[".npz"]) {
        format!(
            "{file} is an MLX archive, which is not read; use the original safetensors checkpoint"
        )
    } else {
        format!("neither {SINGLE} nor {INDEX} is here; is this the folder of a checkpoint?")
    };
    Error::checkpoint(text)
}

/// `weight_map` of the index: tensor to file.
fn weight_map(index: &[u8]) -> Result<BTreeMap<String, String>> {
    let value = json::parse(INDEX, index)?;
    let map = value
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| Error::checkpoint(format!("{INDEX}: no weight_map; download it again")))?;
    if map.is_empty() {
        return Err(Error::checkpoint(format!("{INDEX}: weight_map is empty; download it again")));
    }
    map.iter()
        .map(|(tensor, file)| {
            let plain = |f: &&str| f.ends_with(".safetensors") && !f.contains(['/', '\\']);
            let file = file.as_str().filter(plain).ok_or_else(|| {
                Error::checkpoint(format!(
                    "{INDEX}: `{tensor}` is said to be in {file}, want the plain name of a .safetensors file"
                ))
            })?;
            Ok((tensor.clone(), file.to_owned()))
        })
        .collect()
}

/// Where one tensor is.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Number of the file.
    pub file: usize,
    /// What it is.
    pub info: TensorInfo,
}

/// Every tensor of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    entries: BTreeMap<String, Entry>,
}

impl Tensors {
    /// Joins the headers of all shards, and holds them to the index if there is one.
    ///
    /// # Errors
    /// A tensor in two shards; an index that says otherwise than the shards.
    pub fn new(files: Vec<(String, Header)>, index: Option<&[u8]>) -> Result<Self> {
        let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        for (file, (shard, header)) in files.into_iter().enumerate() {
            for (name, info) in header.tensors {
                if let Some(first) = entries.get(&name) {
                    return Err(Error::checkpoint(format!(
                        "tensor `{name}` is in two shards, {} and {shard}; download both again",
                        names[first.file]
                    )));
                }
                entries.insert(name, Entry { file, info });
            }
        }
        if let Some(index) = index {
            agree(&entries, &names, &weight_map(index)?)?;
        }
        if entries.is_empty() {
            return Err(Error::checkpoint(format!("{} holds no tensors", names.join(", "))));
        }
        Ok(Self { entries })
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Whether there is one of that name.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.entries.iter()
    }
}

fn agree(
    entries: &BTreeMap<String, Entry>,
    files: &[String],
    map: &BTreeMap<String, String>,
) -> Result<()> {
    for (tensor, file) in map {
        let found = entries.get(tensor).map(|e| files[e.file].as_str());
        let text = match found {
            Some(found) if found == file => continue,
            Some(found) => format!("it is in {found}"),
            None => "it is not there".into(),
        };
        return Err(Error::checkpoint(format!(
            "{INDEX} is out of date: it says that `{tensor}` is in {file}, but {text}; download the index and the shards again"
        )));
    }
    match entries.iter().find(|(name, _)| !map.contains_key(*name)) {
        None => Ok(()),
        Some((name, entry)) => Err(Error::checkpoint(format!(
            "{INDEX} is out of date: it does not name `{name}`, which is in {}; download the index and the shards again",
            files[entry.file]
        ))),
    }
}
