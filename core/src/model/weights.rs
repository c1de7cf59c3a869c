//! A model's weights and parameters on a device.

use super::spec::{
    AttentionSpec, BlockSpec, LatentSpec, LinearSpec, Mamba2Spec, MixerSpec, MlpSpec, ModelSpec,
    MoeSpec, NormSpec, ParamRef, WeightRef,
};
use super::together::together;
use crate::backend::{Backend, Memory};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::tensor::{DType, Tensor};
use crate::weight::{Plane, Weight};
use std::rc::Rc;

/// Told how much has been loaded: tensors and bytes so far, of how many.
pub type Progress<'a> = &'a dyn Fn(LoadProgress<'_>);

/// One step of loading.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress<'a> {
    /// What was loaded last.
    pub name: &'a str,
    /// Bytes on the device so far.
    pub bytes: u64,
}

/// A linear layer on a device.
pub struct Linear<B: Backend> {
    /// `[outputs, inputs]`
    pub weight: Rc<Weight<B>>,
    /// `[1, outputs] f32`
    pub bias: Option<Tensor<B>>,
}

/// A norm on a device.
pub struct Norm<B: Backend> {
    /// `[1, cols] f32`
    pub weight: Tensor<B>,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// A Mamba2 mixer on a device.
pub struct Mamba2<B: Backend> {
    pub(super) spec: Mamba2Spec,
    pub(super) in_proj: Linear<B>,
    pub(super) conv_weight: Tensor<B>,
    pub(super) conv_bias: Option<Tensor<B>>,
    pub(super) head_params: Tensor<B>,
    pub(super) norm: Norm<B>,
    pub(super) out_proj: Linear<B>,
}

/// Attention on a device.
pub struct AttentionLayer<B: Backend> {
    pub(super) spec: AttentionSpec,
    pub(super) inv_freq: Option<Tensor<B>>,
    pub(super) q: Linear<B>,
    pub(super) k: Linear<B>,
    pub(super) v: Linear<B>,
    pub(super) o: Linear<B>,
}

/// A feed-forward layer on a device.
pub struct Mlp<B: Backend> {
    pub(super) spec: MlpSpec,
    pub(super) gate: Option<Linear<B>>,
    pub(super) up: Linear<B>,
    pub(super) down: Linear<B>,
}

/// The latent projections of a mixture of experts on a device.
pub struct Latent<B: Backend> {
    pub(super) into: Linear<B>,
    pub(super) out: Linear<B>,
}

/// A mixture of experts on a device.
pub struct Moe<B: Backend> {
    pub(super) spec: MoeSpec,
    pub(super) router: Rc<Weight<B>>,
    pub(super) router_bias: Option<Tensor<B>>,
    pub(super) gate: Option<Rc<Weight<B>>>,
    pub(super) up: Rc<Weight<B>>,
    pub(super) down: Rc<Weight<B>>,
    pub(super) latent: Option<Latent<B>>,
    pub(super) shared: Option<Mlp<B>>,
}

/// A mixer on a device.
pub enum Mixer<B: Backend> {
    /// Selective state space.
    Mamba2(Box<Mamba2<B>>),
    /// Attention.
    Attention(Box<AttentionLayer<B>>),
    /// Feed-forward.
    Mlp(Box<Mlp<B>>),
    /// Mixture of experts.
    Moe(Box<Moe<B>>),
}

/// A block on a device.
pub struct Block<B: Backend> {
    pub(super) norm: Norm<B>,
    pub(super) scale: f32,
    pub(super) mixers: Vec<Mixer<B>>,
}

/// A model's weights on a device.
pub struct Weights<B: Backend> {
    pub(super) embedding: Rc<Weight<B>>,
    pub(super) blocks: Vec<Block<B>>,
    pub(super) final_norm: Norm<B>,
    pub(super) head: Rc<Weight<B>>,
}

/// Blocks that load at once: where reading waits for a network, several requests are under way.
const LANES: usize = 6;

/// Puts every tensor of a checkpoint on `backend`, each read once. What a source has at hand loads in order.
///
/// # Errors
/// The checkpoint's (missing, unread or malformed tensors were refused when it was opened) and the back end's.
pub async fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    progress: Progress<'_>,
) -> Result<Weights<B>> {
    let spec: &ModelSpec = checkpoint.spec();
    let loader = Loader { backend, checkpoint, progress };
    let embedding = loader.weight(&spec.embedding).await?;
    let blocks = together(LANES, spec.blocks.iter().map(|block| loader.block(block))).await?;
    let head = match spec.head == spec.embedding {
        true => embedding.clone(),
        false => loader.weight(&spec.head).await?,
    };
    Ok(Weights { embedding, blocks, final_norm: loader.norm(&spec.final_norm).await?, head })
}

struct Loader<'a, B: Backend> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    progress: Progress<'a>,
}

impl<B: Backend> Loader<'_, B> {
    fn report(&self, name: &str) {
        let bytes = self.backend.ledger().weights;
        tracing::trace!(name, bytes, "loaded");
        (self.progress)(LoadProgress { name, bytes });
    }

    async fn weight(&self, weight: &WeightRef) -> Result<Rc<Weight<B>>> {
        let stored = self.checkpoint.weight(weight).await?;
        let loaded = self.backend.load(&stored).await?;
        if !B::READS_IN_PLACE {
            stored.parts.iter().for_each(|part| part.planes().for_each(Plane::forget));
        }
        self.report(&stored.name);
        Ok(Rc::new(loaded))
    }

    /// Puts dense f32 values on the device.
    fn tensor(&self, name: &str, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor<B>> {
        let tensor = self.backend.tensor(rows, cols, DType::F32, Memory::Weights, name)?;
        self.backend.write(&tensor, bytemuck::cast_slice(values))?;
        self.report(name);
        Ok(tensor)
    }

    async fn param(&self, param: &ParamRef) -> Result<Tensor<B>> {
        let values = self.checkpoint.param(param).await?;
        self.tensor(&param.name, param.rows, param.cols, &values)
    }

    async fn optional(&self, param: Option<&ParamRef>) -> Result<Option<Tensor<B>>> {
        match param {
            Some(param) => self.param(param).await.map(Some),
            None => Ok(None),
        }
    }

    async fn norm(&self, norm: &NormSpec) -> Result<Norm<B>> {
        Ok(Norm { weight: self.param(&norm.weight).await?, eps: norm.eps })
    }

    async fn linear(&self, linear: &LinearSpec) -> Result<Linear<B>> {
        let weight = self.weight(&linear.weight).await?;
        Ok(Linear { weight, bias: self.optional(linear.bias.as_ref()).await? })
    }

    async fn block(&self, block: &BlockSpec) -> Result<Block<B>> {
        let mut mixers = Vec::new();
        for mixer in &block.mixers {
            mixers.push(self.mixer(mixer).await?);
        }
        Ok(Block { norm: self.norm(&block.norm).await?, scale: block.scale, mixers })
    }

    async fn mixer(&self, mixer: &MixerSpec) -> Result<Mixer<B>> {
        Ok(match mixer {
            MixerSpec::Mamba2(m) => Mixer::Mamba2(Box::new(self.mamba2(m).await?)),
            MixerSpec::Attention(a) => Mixer::Attention(Box::new(self.attention(a).await?)),
            MixerSpec::Mlp(m) => Mixer::Mlp(Box::new(self.mlp(m).await?)),
            MixerSpec::Moe(m) => Mixer::Moe(Box::new(self.moe(m).await?)),
        })
    }

    async fn mamba2(&self, m: &Mamba2Spec) -> Result<Mamba2<B>> {
        // The scan binds its three rows of head parameters as one operand.
        let mut head_params = self.checkpoint.param(&m.a_log).await?;
        head_params.extend(self.checkpoint.param(&m.d).await?);
        head_params.extend(self.checkpoint.param(&m.dt_bias).await?);
        Ok(Mamba2 {
            spec: m.clone(),
            in_proj: self.linear(&m.in_proj).await?,
            conv_weight: self.param(&m.conv_weight).await?,
            conv_bias: self.optional(m.conv_bias.as_ref()).await?,
            head_params: self.tensor(&m.a_log.name, 3, m.heads, &head_params)?,
            norm: self.norm(&m.norm).await?,
            out_proj: self.linear(&m.out_proj).await?,
        })
    }

    async fn attention(&self, a: &AttentionSpec) -> Result<AttentionLayer<B>> {
        let inv_freq = match &a.rope {
            Some(values) => Some(self.tensor("rope.inv_freq", 1, values.len(), values)?),
            None => None,
        };
        Ok(AttentionLayer {
            spec: a.clone(),
            inv_freq,
            q: self.linear(&a.q).await?,
            k: self.linear(&a.k).await?,
            v: self.linear(&a.v).await?,
            o: self.linear(&a.o).await?,
        })
    }

    async fn mlp(&self, m: &MlpSpec) -> Result<Mlp<B>> {
        let gate = match &m.gate {
            Some(gate) => Some(self.linear(gate).await?),
            None => None,
        };
        Ok(Mlp {
            spec: m.clone(),
            gate,
            up: self.linear(&m.up).await?,
            down: self.linear(&m.down).await?,
        })
    }

    async fn moe(&self, m: &MoeSpec) -> Result<Moe<B>> {
        let gate = match &m.gate {
            Some(gate) => Some(self.weight(gate).await?),
            None => None,
        };
        let latent = match &m.latent {
            Some(LatentSpec { into, out, .. }) => {
                Some(Latent { into: self.linear(into).await?, out: self.linear(out).await? })
            }
            None => None,
        };
        let shared = match &m.shared {
            Some(shared) => Some(self.mlp(shared).await?),
            None => None,
        };
        Ok(Moe {
            spec: m.clone(),
            router: self.weight(&m.router).await?,
            router_bias: self.optional(m.router_bias.as_ref()).await?,
            gate,
            up: self.weight(&m.up).await?,
            down: self.weight(&m.down).await?,
            latent,
            shared,
        })
    }
}
