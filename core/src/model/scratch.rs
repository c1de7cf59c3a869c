//! Activations of a step: one list that is both allocated and priced by `plan`.

use super::spec::{AttentionSpec, Mamba2Spec, MixerSpec, MlpSpec, ModelSpec, MoeSpec};
use crate::backend::{Backend, Memory, Policy};
use crate::batch::to_usize;
use crate::error::Result;
use crate::ops::DRAW_WORDS;
use crate::sampling::MOST_CANDIDATES;
use crate::tensor::{DType, Tensor};
use serde::Serialize;
use std::collections::BTreeMap;

/// How large a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Dims {
    /// Sequences that hold state at once.
    pub slots: usize,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Most rows in one step.
    pub rows: usize,
    /// Rows whose logits one pass of the head computes.
    pub outputs: usize,
}

/// One buffer of the scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Key of the buffer.
    pub name: &'static str,
    /// Most rows.
    pub rows: usize,
    /// Most columns.
    pub cols: usize,
    /// How elements are stored.
    pub dtype: DType,
}

impl Area {
    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.rows * self.cols * self.dtype.bytes()
    }
}

/// Every buffer that a step of `spec` needs. Mixers of one kind share theirs; a name's largest use counts.
pub fn areas(spec: &ModelSpec, policy: &Policy, dims: &Dims) -> Vec<Area> {
    let mut list = List { policy, dims, areas: BTreeMap::new() };
    let rows = dims.rows;
    list.add("tokens", rows, 1, DType::U32);
    list.add("segments", dims.slots.min(rows), 4, DType::U32);
    list.add("places", rows, 4, DType::U32);
    list.add("stream", rows, spec.hidden, DType::F32);
    list.rows("normed", spec.hidden);
    for mixer in spec.blocks.iter().flat_map(|b| &b.mixers) {
        match mixer {
            MixerSpec::Mamba2(m) => list.mamba2(m),
            MixerSpec::Attention(a) => list.attention(a),
            MixerSpec::Mlp(m) => list.mlp(m),
            MixerSpec::Moe(m) => list.moe(m),
        }
    }
    list.add("out.rows", dims.outputs, 1, DType::U32);
    list.add("out.stream", dims.outputs, spec.hidden, DType::F32);
    list.add("out.normed", dims.outputs, spec.hidden, policy.activations);
    list.add("out.logits", dims.outputs, spec.vocabulary, DType::F32);
    list.add("out.tokens", dims.outputs, 1, DType::U32);
    list.add("out.draws", dims.slots.min(rows), DRAW_WORDS, DType::U32);
    let candidates = to_usize(MOST_CANDIDATES).min(spec.vocabulary);
    list.add("out.values", dims.outputs, candidates, DType::F32);
    list.add("out.columns", dims.outputs, candidates, DType::U32);
    list.areas.into_values().collect()
}

struct List<'a> {
    policy: &'a Policy,
    dims: &'a Dims,
    areas: BTreeMap<&'static str, Area>,
}

impl List<'_> {
    fn add(&mut self, name: &'static str, rows: usize, cols: usize, dtype: DType) {
        let area = self.areas.entry(name).or_insert(Area { name, rows, cols, dtype });
        // A window of another mixer may have another shape; the buffer holds the larger of the two.
        if rows * cols > area.rows * area.cols {
            (area.rows, area.cols) = (rows, cols);
        }
    }

    /// An activation, a row for each row of the step.
    fn rows(&mut self, name: &'static str, cols: usize) {
        self.add(name, self.dims.rows, cols, self.policy.activations);
    }

    fn mamba2(&mut self, m: &Mamba2Spec) {
        self.rows("mamba2.proj", m.projection());
        self.rows("mamba2.conv", m.conv_channels());
        self.rows("mamba2.scan", m.inner());
        self.rows("mamba2.gated", m.inner());
    }

    fn attention(&mut self, a: &AttentionSpec) {
        self.rows("attention.q", a.heads * a.head_dim);
        self.rows("attention.k", a.kv_width());
        self.rows("attention.v", a.kv_width());
        self.rows("attention.out", a.heads * a.head_dim);
    }

    fn mlp(&mut self, m: &MlpSpec) {
        self.rows("mlp.up", m.width);
        if m.gate.is_some() {
            self.rows("mlp.gate", m.width);
        }
        self.rows("mlp.active", m.width);
    }

    fn moe(&mut self, m: &MoeSpec) {
        let (rows, pairs) = (self.dims.rows, self.dims.rows * m.rule.top_k);
        self.add("moe.logits", rows, m.experts, DType::F32);
        self.add("moe.ids", rows, m.rule.top_k, DType::U32);
        self.add("moe.weights", rows, m.rule.top_k, DType::F32);
        self.add("moe.order", pairs, 1, DType::U32);
        self.add("moe.offsets", m.experts + 1, 1, DType::U32);
        let activations = self.policy.activations;
        self.add("moe.up", pairs, m.width, activations);
        if m.gate.is_some() {
            self.add("moe.gate", pairs, m.width, activations);
            self.add("moe.active", pairs, m.width, activations);
        }
        self.add("moe.down", pairs, m.expert_width(), activations);
        if let Some(latent) = &m.latent {
            self.rows("moe.latent", latent.width);
            self.rows("moe.combined", latent.width);
        }
        if let Some(shared) = &m.shared {
            self.mlp(shared);
        }
    }
}

/// The allocated scratch of a session.
pub struct Scratch<B: Backend> {
    areas: BTreeMap<&'static str, Tensor<B>>,
}

impl<B: Backend> Scratch<B> {
    /// Allocates every area.
    ///
    /// # Errors
    /// The back end's memory does not hold them.
    pub fn new(backend: &B, spec: &ModelSpec, dims: &Dims) -> Result<Self> {
        let allocate = |area: Area| {
            let tensor =
                backend.tensor(area.rows, area.cols, area.dtype, Memory::Scratch, area.name)?;
            Ok((area.name, tensor))
        };
        let areas = areas(spec, &backend.policy(), dims)
            .into_iter()
            .map(allocate)
            .collect::<Result<_>>()?;
        Ok(Self { areas })
    }

    /// A dense `[rows, cols]` tensor at the start of an area.
    ///
    /// # Panics
    /// If the area is not in the list or too small: a mixer asks for what [`areas`] does not give it.
    pub fn get(&self, name: &str, rows: usize, cols: usize) -> Tensor<B> {
        let area = &self.areas[name];
        area.reshaped(1, area.rows() * area.cols()).columns(0, rows * cols).reshaped(rows, cols)
    }
}
