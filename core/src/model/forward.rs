//! The forward pass: blocks of `x += scale * sum(mixer(norm(x)))` over a ragged batch.

use super::scratch::Scratch;
use super::spec::{Mamba2Spec, ModelSpec};
use super::state::{MixerState, State};
use super::weights::{AttentionLayer, Block, Linear, Mamba2, Mixer, Mlp, Norm, Weights};
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
        let chosen = self.scratch.get("out.stream", indices.rows(), spec.hidden);
        let stream = self.rows("stream", spec.hidden);
        self.step.run(&SelectRows { x: stream, indices, out: chosen.clone() })?;
        self.head(spec, weights, &chosen)
    }

    /// Logits of rows that left the last block. `stream: [count, hidden] f32`, result `[count, vocabulary] f32`
    ///
    /// # Errors
    /// An op refuses or the back end does.
    pub fn head(
        &self,
        spec: &ModelSpec,
        weights: &Weights<B>,
        stream: &Tensor<B>,
    ) -> Result<Tensor<B>> {
        let normed = self.scratch.get("out.normed", stream.rows(), spec.hidden);
        let logits = self.scratch.get("out.logits", stream.rows(), spec.vocabulary);
        let lead = Lead { norm: &weights.final_norm, stream, normed, first: true, keep: false };
        self.after_norm(&lead, vec![lead.product(&weights.head, None, &logits)], None)?;
        if spec.logit_scale != 1.0 {
            self.step.run(&Scale { x: logits.clone(), factor: spec.logit_scale })?;
        }
        Ok(logits)
    }

    /// A dense activation with a row for each row of the step.
    pub(crate) fn rows(&self, name: &str, cols: usize) -> Tensor<B> {
        self.scratch.get(name, self.segments.shape.rows, cols)
    }

    fn block<'s>(
        &self,
        block: &Block<B>,
        states: &mut impl Iterator<Item = &'s MixerState<B>>,
        stream: &Tensor<B>,
    ) -> Result<()> {
        let store = Store::Accumulate { scale: block.scale };
        for (index, mixer) in block.mixers.iter().enumerate() {
            let lead = Lead {
                norm: &block.norm,
                stream,
                normed: self.rows("normed", stream.cols()),
                first: index == 0,
                // Experts read the normed rows once they are chosen.
                keep: block.mixers.len() > 1 || matches!(mixer, Mixer::Moe(_)),
            };
            match (mixer, states.next()) {
                (Mixer::Mamba2(m), Some(MixerState::Mamba2 { conv, ssm })) => {
                    self.mamba2(m, &lead, conv, ssm, store)?;
                }
                (Mixer::Attention(a), Some(MixerState::Attention(cache))) => {
                    self.attention(a, &lead, cache, store)?;
                }
                (Mixer::Mlp(m), Some(MixerState::None)) => self.mlp(m, &lead, store)?,
                (Mixer::Moe(m), Some(MixerState::None)) => self.moe(m, &lead, store)?,
                _ => unreachable!("state is allocated from the same list of mixers"),
            }
        }
        Ok(())
    }

    /// The norm and what only waits for it; for a later mixer of a block the normed rows are there already.
    pub(super) fn after_norm(
        &self,
        lead: &Lead<'_, B>,
        products: Vec<Product<'_, B>>,
        conv: Option<CausalConv1d<B>>,
    ) -> Result<()> {
        if lead.first {
            let norm = RmsNorm {
                x: lead.stream.clone(),
                weight: lead.norm.weight.clone(),
                groups: 1,
                eps: lead.norm.eps,
                out: lead.normed.clone(),
            };
            return self.step.fused(&NormProducts { norm, keep: lead.keep, products, conv });
        }
        for Product { matmul, activate } in &products {
            self.step.run(matmul)?;
            activate.iter().try_for_each(|activate| self.step.run(activate))?;
        }
        conv.iter().try_for_each(|conv| self.step.run(conv))
    }

    pub(super) fn linear(
        &self,
        linear: &Linear<B>,
        x: &Tensor<B>,
        store: Store,
        out: &Tensor<B>,
    ) -> Result<()> {
        self.step.run(&product(x, &linear.weight, linear.bias.as_ref(), store, out))
    }

    fn mamba2(
        &self,
        m: &Mamba2<B>,
        lead: &Lead<'_, B>,
        conv_state: &Tensor<B>,
        ssm_state: &Tensor<B>,
        store: Store,
    ) -> Result<()> {
        let spec: &Mamba2Spec = &m.spec;
        let (inner, channels) = (spec.inner(), spec.conv_channels());
        let proj = self.rows("mamba2.proj", spec.projection());
        let conv = self.rows("mamba2.conv", channels);
        let convolution = CausalConv1d {
            x: proj.columns(inner, channels),
            weight: m.conv_weight.clone(),
            bias: m.conv_bias.clone(),
            activation: Activation::Silu,
            state: conv_state.clone(),
            segments: self.segments.clone(),
            out: conv.clone(),
        };
        self.after_norm(lead, vec![lead.linear(&m.in_proj, &proj)], Some(convolution))?;
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
        let norm = GatedRmsNorm {
            y: scan,
            z: proj.columns(0, inner),
            weight: m.norm.weight.clone(),
            groups: spec.groups,
            eps: m.norm.eps,
            order: spec.gate_order,
            out: gated.clone(),
        };
        let matmul =
            product(&gated, &m.out_proj.weight, m.out_proj.bias.as_ref(), store, lead.stream);
        self.step.fused(&GatedNormMatmul { norm, matmul })
    }

    fn attention(
        &self,
        a: &AttentionLayer<B>,
        lead: &Lead<'_, B>,
        cache: &KvCache<B>,
        store: Store,
    ) -> Result<()> {
        let width = a.spec.heads * a.spec.head_dim;
        let q = self.rows("attention.q", width);
        let (k, v) = (
            self.rows("attention.k", a.spec.kv_width()),
            self.rows("attention.v", a.spec.kv_width()),
        );
        let products = [(&a.q, &q), (&a.k, &k), (&a.v, &v)];
        self.after_norm(lead, products.map(|(linear, out)| lead.linear(linear, out)).into(), None)?;
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
        self.linear(&a.o, &out, store, lead.stream)
    }

    /// A feed-forward layer's products of the normed rows, and what they leave in `mlp.active`.
    pub(super) fn mlp_up<'w>(
        &self,
        m: &'w Mlp<B>,
        lead: &Lead<'_, B>,
    ) -> (Vec<Product<'w, B>>, Active<B>) {
        let [up, gate, out] = ["mlp.up", "mlp.gate", "mlp.active"].map(|name| (name, m.spec.width));
        let (up, out) = (self.rows(up.0, up.1), self.rows(out.0, out.1));
        let mut first = lead.linear(&m.up, &up);
        let function = m.spec.activation;
        let Some(linear) = &m.gate else {
            first.activate = Some(Activate { function, x: up, gate: None, out: out.clone() });
            return (vec![first], Active { out, rest: None });
        };
        let gate = self.rows(gate.0, gate.1);
        let second = lead.linear(linear, &gate);
        let rest = Activate { function, x: up, gate: Some(gate), out: out.clone() };
        (vec![first, second], Active { out, rest: Some(rest) })
    }

    fn mlp(&self, m: &Mlp<B>, lead: &Lead<'_, B>, store: Store) -> Result<()> {
        let (products, active) = self.mlp_up(m, lead);
        self.after_norm(lead, products, None)?;
        active.rest.iter().try_for_each(|activate| self.step.run(activate))?;
        self.linear(&m.down, &active.out, store, lead.stream)
    }
}

/// A block's way into a mixer: its norm, and where the normed rows go.
pub(super) struct Lead<'a, B: Backend> {
    norm: &'a Norm<B>,
    pub stream: &'a Tensor<B>,
    pub normed: Tensor<B>,
    /// The mixer's products wait for the norm; otherwise it has run.
    first: bool,
    /// Another mixer reads the normed rows too.
    keep: bool,
}

impl<B: Backend> Lead<'_, B> {
    pub fn product<'w>(
        &self,
        weight: &'w Weight<B>,
        bias: Option<&Tensor<B>>,
        out: &Tensor<B>,
    ) -> Product<'w, B> {
        let matmul = product(&self.normed, weight, bias, Store::Replace, out);
        Product { matmul, activate: None }
    }

    pub fn linear<'w>(&self, linear: &'w Linear<B>, out: &Tensor<B>) -> Product<'w, B> {
        self.product(&linear.weight, linear.bias.as_ref(), out)
    }
}

/// A feed-forward layer's middle, and the gating that must still run before it is read.
pub(super) struct Active<B: Backend> {
    pub out: Tensor<B>,
    pub rest: Option<Activate<B>>,
}

pub(super) fn product<'w, B: Backend>(
    x: &Tensor<B>,
    weight: &'w Weight<B>,
    bias: Option<&Tensor<B>>,
    store: Store,
    out: &Tensor<B>,
) -> Matmul<'w, B> {
    Matmul { x: x.clone(), weight, bias: bias.cloned(), store, out: out.clone() }
}
