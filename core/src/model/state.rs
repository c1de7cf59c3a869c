//! What sequences carry from step to step, by slot.

use super::scratch::Dims;
use super::spec::{MixerSpec, ModelSpec};
use crate::backend::{Backend, Memory, Policy};
use crate::error::Result;
use crate::ops::{CopySlot, KvCache};
use crate::step::Step;
use crate::tensor::{DType, Tensor};

/// State of one mixer, for every slot.
pub enum MixerState<B: Backend> {
    /// Convolution window and recurrence of a Mamba2 mixer.
    Mamba2 {
        /// `[slots * channels, conv_width - 1] f32`
        conv: Tensor<B>,
        /// `[slots * heads * head_dim, state] f32`
        ssm: Tensor<B>,
    },
    /// Keys and values of an attention mixer.
    Attention(KvCache<B>),
    /// Mixers without memory.
    None,
}

/// State of a model: one entry for each mixer, in the order of the blocks.
pub struct State<B: Backend> {
    pub(super) mixers: Vec<MixerState<B>>,
    dims: Dims,
}

/// Bytes of the recurrent state of one sequence.
pub fn state_bytes(spec: &ModelSpec) -> u64 {
    let elements = |mixer: &MixerSpec| match mixer {
        MixerSpec::Mamba2(m) => m.conv_channels() * (m.conv_width - 1) + m.inner() * m.state_size,
        _ => 0,
    };
    spec.blocks.iter().flat_map(|b| &b.mixers).map(|m| elements(m) as u64 * 4).sum()
}

/// Bytes of the keys and values of one token.
pub fn kv_bytes(spec: &ModelSpec, policy: &Policy) -> u64 {
    let elements = |mixer: &MixerSpec| match mixer {
        MixerSpec::Attention(a) => 2 * a.kv_width(),
        _ => 0,
    };
    spec.blocks
        .iter()
        .flat_map(|b| &b.mixers)
        .map(|m| (elements(m) * policy.kv.bytes()) as u64)
        .sum()
}

impl<B: Backend> State<B> {
    /// Allocates the state of every slot. Its contents are undefined: a fresh segment never reads them.
    ///
    /// # Errors
    /// The back end's memory does not hold it.
    pub fn new(backend: &B, spec: &ModelSpec, dims: &Dims) -> Result<Self> {
        let kv = backend.policy().kv;
        let allocate = |mixer: &MixerSpec| match mixer {
            MixerSpec::Mamba2(m) => {
                let (channels, inner) = (dims.slots * m.conv_channels(), dims.slots * m.inner());
                let conv = backend.tensor(
                    channels,
                    m.conv_width - 1,
                    DType::F32,
                    Memory::State,
                    "conv state",
                )?;
                let ssm =
                    backend.tensor(inner, m.state_size, DType::F32, Memory::State, "ssm state")?;
                Ok(MixerState::Mamba2 { conv, ssm })
            }
            MixerSpec::Attention(a) => {
                let rows = dims.slots * dims.context;
                let cache = |label| backend.tensor(rows, a.kv_width(), kv, Memory::Kv, label);
                Ok(MixerState::Attention(KvCache {
                    k: cache("key cache")?,
                    v: cache("value cache")?,
                    context: dims.context,
                }))
            }
            MixerSpec::Mlp(_) | MixerSpec::Moe(_) => Ok(MixerState::None),
        };
        let mixers =
            spec.blocks.iter().flat_map(|b| &b.mixers).map(allocate).collect::<Result<_>>()?;
        Ok(Self { mixers, dims: *dims })
    }

    /// Encodes a copy of slot `from` over slot `to`; `tokens` keys and values are copied.
    ///
    /// # Errors
    /// A slot out of range, or both the same.
    pub fn copy_slot(
        &self,
        step: &Step<'_, B>,
        from: usize,
        to: usize,
        tokens: usize,
    ) -> Result<()> {
        let copy = |state: &Tensor<B>, rows_per_slot: usize, rows: usize| {
            step.run(&CopySlot { state: state.clone(), rows_per_slot, rows, from, to })
        };
        for mixer in &self.mixers {
            match mixer {
                MixerState::Mamba2 { conv, ssm } => {
                    for state in [conv, ssm] {
                        let rows = state.rows() / self.dims.slots;
                        copy(state, rows, rows)?;
                    }
                }
                MixerState::Attention(cache) => {
                    copy(&cache.k, cache.context, tokens)?;
                    copy(&cache.v, cache.context, tokens)?;
                }
                MixerState::None => {}
            }
        }
        Ok(())
    }
}
