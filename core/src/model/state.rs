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
        /// `[slots * heads * head_dim, state]`
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

/// One buffer of the state.
pub struct StateArea {
    /// What the ledger counts it as.
    pub class: Memory,
    /// Name in errors.
    pub label: &'static str,
    /// Rows of all slots.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// How elements are stored.
    pub dtype: DType,
}

impl StateArea {
    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.rows * self.cols * self.dtype.bytes()
    }
}

/// The two buffers of one mixer, or none.
fn mixer_areas(mixer: &MixerSpec, policy: &Policy, dims: &Dims) -> Vec<StateArea> {
    let area = |class, label, slot_rows, cols, dtype| {
        let rows = dims.slots * slot_rows;
        StateArea { class, label, rows, cols, dtype }
    };
    match mixer {
        MixerSpec::Mamba2(m) => vec![
            area(
                Memory::State,
                "convolution state",
                m.conv_channels(),
                m.conv_width - 1,
                DType::F32,
            ),
            area(Memory::State, "recurrent state", m.inner(), m.state_size, policy.state),
        ],
        MixerSpec::Attention(a) => vec![
            area(Memory::Kv, "keys", dims.context, a.kv_width(), policy.kv),
            area(Memory::Kv, "values", dims.context, a.kv_width(), policy.kv),
        ],
        MixerSpec::Mlp(_) | MixerSpec::Moe(_) => Vec::new(),
    }
}

/// Every buffer of the state of a session: what is allocated, and what `plan` prices.
pub fn state_areas(spec: &ModelSpec, policy: &Policy, dims: &Dims) -> Vec<StateArea> {
    spec.blocks.iter().flat_map(|b| &b.mixers).flat_map(|m| mixer_areas(m, policy, dims)).collect()
}

/// Bytes of one class of memory for one slot whose sequence holds one token.
fn slot_bytes(spec: &ModelSpec, policy: &Policy, class: Memory) -> u64 {
    let one = Dims { slots: 1, context: 1, rows: 1, outputs: 1 };
    let areas = state_areas(spec, policy, &one);
    areas.iter().filter(|a| a.class == class).map(|a| a.bytes() as u64).sum()
}

/// Bytes of the recurrent state of one sequence.
pub fn state_bytes(spec: &ModelSpec, policy: &Policy) -> u64 {
    slot_bytes(spec, policy, Memory::State)
}

/// Bytes of the keys and values of one token.
pub fn kv_bytes(spec: &ModelSpec, policy: &Policy) -> u64 {
    slot_bytes(spec, policy, Memory::Kv)
}

impl<B: Backend> State<B> {
    /// Allocates the state of every slot. Its contents are undefined: a fresh segment never reads them.
    ///
    /// # Errors
    /// The back end's memory does not hold it.
    pub fn new(backend: &B, spec: &ModelSpec, dims: &Dims) -> Result<Self> {
        let policy = backend.policy();
        let allocate = |mixer: &MixerSpec| {
            let mut tensors = Vec::new();
            for a in mixer_areas(mixer, &policy, dims) {
                tensors.push(backend.tensor(a.rows, a.cols, a.dtype, a.class, a.label)?);
            }
            let mut tensors = tensors.into_iter();
            Ok(match (mixer, tensors.next(), tensors.next()) {
                (MixerSpec::Mamba2(_), Some(conv), Some(ssm)) => MixerState::Mamba2 { conv, ssm },
                (_, Some(k), Some(v)) => {
                    MixerState::Attention(KvCache { k, v, context: dims.context })
                }
                _ => MixerState::None,
            })
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
