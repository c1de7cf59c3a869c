//! The forward pass: blocks of `x += scale * sum(mixer(norm(x)))` over a ragged batch.

use super::scratch::Scratch;
use super::spec::{Mamba2Spec, ModelSpec};
use super::state::{MixerState, State};
use super::weights::{
    AttentionLayer, Block, Latent, Linear, Mamba2, Mixer, Mlp, Moe, Norm, Weights,
};
use crate::backend::Backend;
use crate::batch::Segments;
use crate::error::Result;
use crate::ops::*;
use crate::step::Step;
use crate::tensor::Tensor;
use crate::weight::Weight;

/// One step being encoded.
pub struct Forward<'a, B: Backend> {
    /// Where ops go.
    pub step: &'a Step<'a, B>,
    /// Activations.
    pub scratch: &'a Scratch<B>,
    /// Which rows are whose.
    pub segments: &'a Segments<B>,
}

impl<B: Backend> Forward<'_, B> {
    /// Runs tokens through all blocks; the residual stream is left in the scratch. `tokens: [rows, 1] u32`
    ///
    /// # Errors
    /// An op refuses or the back end does.
    pub fn blocks(
        &self,
        spec: &ModelSpec,
        weights: &Weights<B>,
        state: &State<B>,
        tokens: Tensor<B>,
    ) -> Result<()> {
        let stream = self.rows("stream", spec.hidden);
        self.step.run(&Embed {
            tokens,
            table: &weights.embedding,
            scale: spec.embedding_scale,
            out: stream.clone(),
        })?;
        let mut states = state.mixers.iter();
        for block in &weights.blocks {
            self.block(block, &mut states, &stream)?;
        }
        Ok(())
    }

    /// Logits of the rows that `indices` names. `indices: [count, 1] u32`, result `[count, vocabulary] f32`
    ///
    /// # Errors
    /// An op refuses or the back end does.
    pub fn logits(
        &self,
        spec: &ModelSpec,
        weights: &Weights<B>,
        indices: Tensor<B>,
    ) -> Result<Tensor<B>> {
        let count = indices.rows();
        let chosen = self.scratch.get("out.stream", count, spec.hidden);
        let normed = self.scratch.get("out.normed", count, spec.hidden);
        let logits = self.scratch.get("out.logits", count, spec.vocabulary);
        let stream = self.rows("stream", spec.hidden);
        self.step.run(&SelectRows { x: stream, indices, out: chosen.clone() })?;
        self.norm(&weights.final_norm, &chosen, &normed)?;
        self.matmul(&normed, &weights.head, None, Store::Replace, &logits)?;
        if spec.logit_scale != 1.0 {
            self.step.run(&Scale { x: logits.clone(), factor: spec.logit_scale })?;
        }
        Ok(logits)
    }

    /// A dense activation with a row for each row of the step.
    fn rows(&self, name: &str, cols: usize) -> Tensor<B> {
        self.scratch.get(name, self.segments.shape.rows, cols)
    }

    fn block<'s>(
        &self,
        block: &Block<B>,
        states: &mut impl Iterator<Item = &'s MixerState<B>>,
        stream: &Tensor<B>,
    ) -> Result<()> {
        let normed = self.rows("normed", stream.cols());
        self.norm(&block.norm, stream, &normed)?;
        let store = Store::Accumulate { scale: block.scale };
        for mixer in &block.mixers {
            let state = states.next();
            match (mixer, state) {
                (Mixer::Mamba2(m), Some(MixerState::Mamba2 { conv, ssm })) => {
                    self.mamba2(m, &normed, conv, ssm, store, stream)?;
                }
                (Mixer::Attention(a), Some(MixerState::Attention(cache))) => {
                    self.attention(a, &normed, cache, store, stream)?;
                }
                (Mixer::Mlp(m), Some(MixerState::None)) => self.mlp(m, &normed, store, stream)?,
                (Mixer::Moe(m), Some(MixerState::None)) => self.moe(m, &normed, store, stream)?,
                _ => unreachable!("state is allocated from the same list of mixers"),
            }
        }
        Ok(())
    }

    fn norm(&self, norm: &Norm<B>, x: &Tensor<B>, out: &Tensor<B>) -> Result<()> {
        self.step.run(&RmsNorm {
            x: x.clone(),
            weight: norm.weight.clone(),
            groups: 1,
            eps: norm.eps,
            out: out.clone(),
        })
    }

    fn matmul(
        &self,
        x: &Tensor<B>,
        weight: &Weight<B>,
        bias: Option<&Tensor<B>>,
        store: Store,
        out: &Tensor<B>,
    ) -> Result<()> {
        self.step.run(&Matmul {
            x: x.clone(),
            weight,
            bias: bias.cloned(),
            store,
            out: out.clone(),
        })
    }

    fn linear(
        &self,
        linear: &Linear<B>,
        x: &Tensor<B>,
        store: Store,
        out: &Tensor<B>,
    ) -> Result<()> {
        self.matmul(x, &linear.weight, linear.bias.as_ref(), store, out)
    }

    fn mamba2(
        &self,
        m: &Mamba2<B>,
        x: &Tensor<B>,
        conv_state: &Tensor<B>,
        ssm_state: &Tensor<B>,
        store: Store,
        stream: &Tensor<B>,
    ) -> Result<()> {
        let spec: &Mamba2Spec = &m.spec;
        let (inner, channels) = (spec.inner(), spec.conv_channels());
        let proj = self.rows("mamba2.proj", spec.projection());
        self.linear(&m.in_proj, x, Store::Replace, &proj)?;
        let conv = self.rows("mamba2.conv", channels);
        self.step.run(&CausalConv1d {
            x: proj.columns(inner, channels),
            weight: m.conv_weight.clone(),
            bias: m.conv_bias.clone(),
            activation: Activation::Silu,
            state: conv_state.clone(),
            segments: self.segments.clone(),
            out: conv.clone(),
        })?;
        let (scan, bc) = (self.rows("mamba2.scan", inner), spec.groups * spec.state_size);
        self.step.run(&SsmScan {
            x: conv.columns(0, inner),
            b: conv.columns(inner, bc),
            c: conv.columns(inner + bc, bc),
            dt: proj.columns(inner + channels, spec.heads),
            head_params: m.head_params.clone(),
            dt_limit: spec.dt_limit,
            head_dim: spec.head_dim,
            state_size: spec.state_size,
            state: ssm_state.clone(),
            segments: self.segments.clone(),
            out: scan.clone(),
        })?;
        let gated = self.rows("mamba2.gated", inner);
        self.step.run(&GatedRmsNorm {
            y: scan,
            z: proj.columns(0, inner),
            weight: m.norm.weight.clone(),
            groups: spec.groups,
            eps: m.norm.eps,
            order: spec.gate_order,
            out: gated.clone(),
        })?;
        self.linear(&m.out_proj, &gated, store, stream)
    }

    fn attention(
        &self,
        a: &AttentionLayer<B>,
        x: &Tensor<B>,
        cache: &KvCache<B>,
        store: Store,
        stream: &Tensor<B>,
    ) -> Result<()> {
        let width = a.spec.heads * a.spec.head_dim;
        let q = self.rows("attention.q", width);
        let (k, v) = (
            self.rows("attention.k", a.spec.kv_width()),
            self.rows("attention.v", a.spec.kv_width()),
        );
        for (linear, out) in [(&a.q, &q), (&a.k, &k), (&a.v, &v)] {
            self.linear(linear, x, Store::Replace, out)?;
        }
        if let Some(inv_freq) = &a.inv_freq {
            for x in [&q, &k] {
                self.step.run(&Rope {
                    x: x.clone(),
                    inv_freq: inv_freq.clone(),
                    head_dim: a.spec.head_dim,
                    segments: self.segments.clone(),
                })?;
            }
        }
        let segments = self.segments.clone();
        self.step.run(&KvAppend { k, v, cache: cache.clone(), segments: segments.clone() })?;
        let out = self.rows("attention.out", width);
        self.step.run(&Attention {
            q,
            cache: cache.clone(),
            head_dim: a.spec.head_dim,
            scale: a.spec.scale,
            segments,
            out: out.clone(),
        })?;
        self.linear(&a.o, &out, store, stream)
    }

    fn mlp(&self, m: &Mlp<B>, x: &Tensor<B>, store: Store, stream: &Tensor<B>) -> Result<()> {
        let up = self.rows("mlp.up", m.spec.width);
        self.linear(&m.up, x, Store::Replace, &up)?;
        let gate = match &m.gate {
            Some(linear) => {
                let gate = self.rows("mlp.gate", m.spec.width);
                self.linear(linear, x, Store::Replace, &gate)?;
                Some(gate)
            }
            None => None,
        };
        let active = self.rows("mlp.active", m.spec.width);
        self.step.run(&Activate {
            function: m.spec.activation,
            x: up,
            gate,
            out: active.clone(),
        })?;
        self.linear(&m.down, &active, store, stream)
    }

    fn moe(&self, m: &Moe<B>, x: &Tensor<B>, store: Store, stream: &Tensor<B>) -> Result<()> {
        let (ids, weights) = self.route(m, x)?;
        match &m.latent {
            None => self.experts(m, x, &ids, &weights, store, stream)?,
            Some(Latent { into, out }) => {
                let width = m.spec.expert_width();
                let (latent, combined) =
                    (self.rows("moe.latent", width), self.rows("moe.combined", width));
                self.linear(into, x, Store::Replace, &latent)?;
                self.experts(m, &latent, &ids, &weights, Store::Replace, &combined)?;
                self.linear(out, &combined, store, stream)?;
            }
        }
        match &m.shared {
            Some(shared) => self.mlp(shared, x, store, stream),
            None => Ok(()),
        }
    }

    /// Chosen experts `[rows, top_k] u32` and their weights `[rows, top_k] f32`.
    fn route(&self, m: &Moe<B>, x: &Tensor<B>) -> Result<(Tensor<B>, Tensor<B>)> {
        let (rows, top_k) = (x.rows(), m.spec.rule.top_k);
        let logits = self.scratch.get("moe.logits", rows, m.spec.experts);
        self.matmul(x, &m.router, None, Store::Replace, &logits)?;
        let ids = self.scratch.get("moe.ids", rows, top_k);
        let weights = self.scratch.get("moe.weights", rows, top_k);
        self.step.run(&MoeRoute {
            logits,
            bias: m.router_bias.clone(),
            rule: m.spec.rule,
            ids: ids.clone(),
            weights: weights.clone(),
        })?;
        Ok((ids, weights))
    }

    fn experts(
        &self,
        m: &Moe<B>,
        x: &Tensor<B>,
        ids: &Tensor<B>,
        weights: &Tensor<B>,
        store: Store,
        out: &Tensor<B>,
    ) -> Result<()> {
        let (spec, pairs) = (&m.spec, ids.rows() * ids.cols());
        let groups = self.groups(m, ids)?;
        let run = |x: &Tensor<B>, input, weight: &Weight<B>, activation, out: &Tensor<B>| {
            let (ids, groups) = (ids.clone(), groups.clone());
            self.step.run(&MoeMatmul {
                x: x.clone(),
                input,
                weight,
                ids,
                groups,
                activation,
                out: out.clone(),
            })
        };
        let up = self.scratch.get("moe.up", pairs, spec.width);
        let active = match &m.gate {
            None => {
                run(x, ExpertInput::Row, &m.up, spec.activation, &up)?;
                up
            }
            Some(weight) => {
                let gate = self.scratch.get("moe.gate", pairs, spec.width);
                let active = self.scratch.get("moe.active", pairs, spec.width);
                run(x, ExpertInput::Row, &m.up, Activation::Identity, &up)?;
                run(x, ExpertInput::Row, weight, Activation::Identity, &gate)?;
                let function = spec.activation;
                self.step.run(&Activate {
                    function,
                    x: up,
                    gate: Some(gate),
                    out: active.clone(),
                })?;
                active
            }
        };
        let down = self.scratch.get("moe.down", pairs, spec.expert_width());
        run(&active, ExpertInput::Pair, &m.down, Activation::Identity, &down)?;
        self.step.run(&MoeCombine { x: down, weights: weights.clone(), store, out: out.clone() })
    }

    /// The pairs by expert, where the step has rows enough to gain from it.
    fn groups(&self, m: &Moe<B>, ids: &Tensor<B>) -> Result<Option<ExpertGroups<B>>> {
        if ids.rows() < self.step.backend().policy().group_experts_from {
            return Ok(None);
        }
        let groups = ExpertGroups {
            order: self.scratch.get("moe.order", ids.rows() * ids.cols(), 1),
            offsets: self.scratch.get("moe.offsets", m.spec.experts + 1, 1),
        };
        self.step.run(&MoeGroup {
            ids: ids.clone(),
            experts: m.spec.experts,
            groups: groups.clone(),
        })?;
        Ok(Some(groups))
    }
}
