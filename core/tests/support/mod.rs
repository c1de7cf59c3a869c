//! Small checkpoints made in memory, to be damaged one thing at a time.

#![allow(dead_code, reason = "each test binary uses its own part")]

use bytes::Bytes;
use safetensors::{Dtype, serialize, tensor::TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use whipsnake_core::checkpoint::{Checkpoint, Geometry};

/// One tensor: dtype, shape, bytes.
pub type Tensor = (Dtype, Vec<usize>, Vec<u8>);

/// A checkpoint in one file, before it is written.
#[derive(Clone)]
pub struct Files {
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
    pub others: Vec<(String, Bytes)>,
}

/// A config with every kind of block.
pub fn config() -> Value {
    json!({
        "model_type": "nemotron_h", "torch_dtype": "float32", "vocab_size": 16, "hidden_size": 32,
        "hybrid_override_pattern": "ME*-", "num_hidden_layers": 4, "mamba_num_heads": 4, "mamba_head_dim": 8,
        "ssm_state_size": 8, "n_groups": 2, "conv_kernel": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "intermediate_size": 48, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 32, "max_position_embeddings": 64
    })
}

impl Files {
    /// Every tensor that `config` asks for, all zeros.
    pub fn new(config: Value) -> Self {
        let geometry = Geometry::from_config(config.to_string().as_bytes()).unwrap();
        Self { tensors: tensors(&geometry), config, others: Vec::new() }
    }

    /// The small checkpoint with linear layers quantised by `algo`, scales 1.
    pub fn quantised(algo: &str, exclude: &[&str]) -> Self {
        let quant = json!({"quantization": {"quant_algo": algo, "exclude_modules": exclude}});
        let text =
            json!({"about": "", "config": config(), "dtype": "BF16", "hf_quant_config": quant});
        let geometry = Geometry::from_json("tiny", text.to_string().as_bytes()).unwrap();
        let mut files = Self { tensors: tensors(&geometry), config: config(), others: Vec::new() };
        for (name, tensor) in &mut files.tensors {
            if name.ends_with("scale") || name.ends_with("scale_2") {
                match tensor.0 {
                    Dtype::F32 => tensor.2 = 1f32.to_le_bytes().to_vec(),
                    _ => tensor.2.fill(0x38),
                }
            }
        }
        files.others.push(("hf_quant_config.json".into(), quant.to_string().into()));
        files
    }

    /// With one key of the config changed.
    pub fn key(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    /// With one tensor put in or replaced, zeros.
    pub fn tensor(mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Self {
        self.tensors.insert(name.into(), zeros(dtype, shape));
        self
    }

    /// Without one tensor.
    pub fn without(mut self, name: &str) -> Self {
        self.tensors.remove(name).expect("a tensor of that name");
        self
    }

    /// With one scalar set.
    pub fn scalar(mut self, name: &str, value: f32) -> Self {
        self.tensors.get_mut(name).expect("a tensor of that name").2 = value.to_le_bytes().to_vec();
        self
    }

    /// With another file beside.
    pub fn beside(mut self, name: &str, bytes: impl Into<Bytes>) -> Self {
        self.others.push((name.into(), bytes.into()));
        self
    }

    /// The files of a checkpoint without shards.
    pub fn files(&self) -> Vec<(String, Bytes)> {
        let mut files = self.small();
        files.push(("model.safetensors".into(), safetensors(&self.tensors)));
        files
    }

    /// The files that hold no tensors.
    pub fn small(&self) -> Vec<(String, Bytes)> {
        let mut files = self.others.clone();
        files.push(("config.json".into(), self.config.to_string().into()));
        files
    }

    /// Two shards, split at a name, and the index.
    pub fn shards(&self) -> (BTreeMap<String, Tensor>, BTreeMap<String, Tensor>, Value) {
        let mut first = self.tensors.clone();
        let second = first.split_off("backbone.layers.2");
        let of = |shard: &BTreeMap<String, Tensor>, name: &'static str| {
            shard.keys().map(|k| (k.clone(), json!(name))).collect::<Vec<_>>()
        };
        let map = [of(&first, FIRST), of(&second, SECOND)].concat();
        let map: serde_json::Map<String, Value> = map.into_iter().collect();
        (first, second, json!({"metadata": {}, "weight_map": map}))
    }

    pub fn open(&self) -> whipsnake_core::error::Result<Checkpoint> {
        Checkpoint::from_memory(self.files())
    }

    /// Why the checkpoint is refused.
    pub fn refusal(&self) -> String {
        refusal(self.files())
    }
}

pub const FIRST: &str = "model-00001-of-00002.safetensors";
pub const SECOND: &str = "model-00002-of-00002.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

/// Why these files are refused.
pub fn refusal(files: Vec<(String, Bytes)>) -> String {
    match Checkpoint::from_memory(files) {
        Ok(_) => "not refused".into(),
        Err(error) => error.to_string(),
    }
}

/// A safetensors file as the public crate writes it.
pub fn safetensors(tensors: &BTreeMap<String, Tensor>) -> Bytes {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    serialize(views, None).unwrap().into()
}

/// A file whose header is `json`, with `data` bytes of zeros.
pub fn raw(json: &str, data: usize) -> Bytes {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes.into()
}

pub fn zeros(dtype: Dtype, shape: &[usize]) -> Tensor {
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    (dtype, shape.to_vec(), vec![0; bytes])
}

fn tensors(geometry: &Geometry) -> BTreeMap<String, Tensor> {
    let index = geometry.index().unwrap();
    index.into_iter().map(|e| (e.name.clone(), zeros(e.dtype, &e.shape))).collect()
}
