//! What is loaded, for the page.

use serde::Serialize;
use whipsnake_core::backend::{Ledger, Policy};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::error::Result;
use whipsnake_core::model::Dims;
use whipsnake_core::plan::{Plan, Request};
use whipsnake_core::sampling::SamplingOptions;
use whipsnake_wgpu::DeviceReport;

/// One block of the model.
#[derive(Debug, Serialize)]
pub(crate) struct Layer {
    /// `mamba2`, `attention`, `mlp` or `moe`; several where a block has several mixers.
    kinds: Vec<&'static str>,
    /// Bytes of its weights as stored.
    bytes: u64,
}

/// Sampling where a request says nothing.
#[derive(Debug, Serialize)]
struct Defaults {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
}

/// The loaded model.
#[derive(Debug, Serialize)]
pub(crate) struct About {
    backend: &'static str,
    device: Option<DeviceReport>,
    vocabulary: usize,
    hidden: usize,
    context: usize,
    layers: Vec<Layer>,
    tensors: usize,
    /// Bytes of the tensors that are read.
    stored_bytes: u64,
    /// What the plan says that the model takes.
    plan: Ledger,
    /// Whether it has a tokenizer, and a chat template.
    text: bool,
    chat: bool,
    defaults: Option<Defaults>,
}

/// What opening a model finds out before anything is on the device.
pub(crate) struct Opening<'a> {
    pub checkpoint: &'a Checkpoint,
    pub dims: Dims,
    pub policy: Policy,
    pub backend: &'static str,
    pub device: Option<DeviceReport>,
    pub sampling: Option<SamplingOptions>,
    pub chat: bool,
}

impl About {
    pub(crate) fn of(opening: Opening<'_>) -> Result<Self> {
        let Opening { checkpoint, dims, policy, backend, device, sampling, chat } = opening;
        let spec = checkpoint.spec();
        let plan = Plan::new(checkpoint, Request { policy, dims, widen: false })?;
        let inventory = checkpoint.inventory()?;
        let mut layers = Vec::new();
        for block in &spec.blocks {
            let mut bytes = 0;
            for weight in block.weights() {
                bytes += checkpoint.describe(weight)?.bytes();
            }
            layers.push(Layer { kinds: block.mixers.iter().map(|m| m.kind()).collect(), bytes });
        }
        let defaults = sampling.map(|s| Defaults {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
        });
        Ok(Self {
            backend,
            device,
            vocabulary: spec.vocabulary,
            hidden: spec.hidden,
            context: dims.context,
            layers,
            tensors: inventory.read,
            stored_bytes: inventory.read_bytes,
            plan: plan.memory,
            text: defaults.is_some(),
            chat,
            defaults,
        })
    }
}
