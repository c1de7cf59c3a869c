//! The forward pass of a mixture of experts.

use super::forward::{Active, Forward, Lead, product};
use super::weights::Moe;
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::*;
use crate::tensor::Tensor;

impl<B: Backend> Forward<'_, B> {
    pub(super) fn moe(&self, m: &Moe<B>, lead: &Lead<'_, B>, store: Store) -> Result<()> {
        let rows = lead.stream.rows();
        let logits = self.scratch.get("moe.logits", rows, m.spec.experts);
        let mut products = vec![lead.product(&m.router, None, &logits)];
        let latent = m.latent.as_ref().map(|latent| {
            let out = self.rows("moe.latent", m.spec.expert_width());
            products.push(lead.linear(&latent.into, &out));
            out
        });
        let shared = m.shared.as_ref().map(|shared| {
            let (more, active) = self.mlp_up(shared, lead);
            products.extend(more);
            (&shared.down, active)
        });
        self.after_norm(lead, products, None)?;
        if let Some((_, Active { rest: Some(activate), .. })) = &shared {
            self.step.run(activate)?;
        }
        let down = shared.as_ref().map(|(linear, active)| {
            let bias = linear.bias.as_ref();
            product(&active.out, &linear.weight, bias, store, lead.stream)
        });
        let x = latent.as_ref().unwrap_or(&lead.normed);
        let chosen = self.experts_up(m, x, logits)?;
        match &m.latent {
            None => self.experts_down(m, chosen, store, lead.stream, down),
            Some(latent) => {
                let combined = self.rows("moe.combined", m.spec.expert_width());
                self.experts_down(m, chosen, Store::Replace, &combined, None)?;
                self.linear(&latent.out, &combined, store, lead.stream)?;
                down.iter().try_for_each(|down| self.step.run(down))
            }
        }
    }

    /// Chooses each row's experts and runs their first product.
    fn experts_up(&self, m: &Moe<B>, x: &Tensor<B>, logits: Tensor<B>) -> Result<Chosen<B>> {
        let (spec, rows) = (&m.spec, x.rows());
        let pairs = rows * spec.rule.top_k;
        let ids = self.scratch.get("moe.ids", rows, spec.rule.top_k);
        let weights = self.scratch.get("moe.weights", rows, spec.rule.top_k);
        let route = MoeRoute {
            logits,
            bias: m.router_bias.clone(),
            rule: spec.rule,
            ids: ids.clone(),
            weights: weights.clone(),
        };
        let up = self.scratch.get("moe.up", pairs, spec.width);
        let run =
            |weight, groups: Option<ExpertGroups<B>>, activation, out: &Tensor<B>| MoeMatmul {
                x: x.clone(),
                input: ExpertInput::Row,
                weight,
                ids: ids.clone(),
                groups,
                activation,
                out: out.clone(),
            };
        let sorted = rows >= self.step.backend().policy().group_experts_from;
        if m.gate.is_none() && !sorted {
            let first = run(&*m.up, None, spec.activation, &up);
            self.step.fused(&MoeUp { route, up: first })?;
            return Ok(Chosen { x: up, ids, weights, groups: None });
        }
        self.step.run(&route)?;
        let groups = if sorted { Some(self.group(m, &ids)?) } else { None };
        let Some(weight) = &m.gate else {
            self.step.run(&run(&*m.up, groups.clone(), spec.activation, &up))?;
            return Ok(Chosen { x: up, ids, weights, groups });
        };
        let gate = self.scratch.get("moe.gate", pairs, spec.width);
        let active = self.scratch.get("moe.active", pairs, spec.width);
        self.step.run(&run(&*m.up, groups.clone(), Activation::Identity, &up))?;
        self.step.run(&run(weight, groups.clone(), Activation::Identity, &gate))?;
        let function = spec.activation;
        self.step.run(&Activate { function, x: up, gate: Some(gate), out: active.clone() })?;
        Ok(Chosen { x: active, ids, weights, groups })
    }

    /// The experts' second product and its weighted sum, and what the shared expert adds to the same target.
    fn experts_down(
        &self,
        m: &Moe<B>,
        chosen: Chosen<B>,
        store: Store,
        out: &Tensor<B>,
        shared: Option<Matmul<'_, B>>,
    ) -> Result<()> {
        let down = self.scratch.get("moe.down", chosen.x.rows(), m.spec.expert_width());
        let product = MoeMatmul {
            x: chosen.x,
            input: ExpertInput::Pair,
            weight: &m.down,
            ids: chosen.ids,
            groups: chosen.groups,
            activation: Activation::Identity,
            out: down.clone(),
        };
        let combine = MoeCombine { x: down, weights: chosen.weights, store, out: out.clone() };
        self.step.fused(&MoeDown { down: product, combine, shared })
    }

    /// Sorts the pairs by expert.
    fn group(&self, m: &Moe<B>, ids: &Tensor<B>) -> Result<ExpertGroups<B>> {
        let groups = ExpertGroups {
            order: self.scratch.get("moe.order", ids.rows() * ids.cols(), 1),
            offsets: self.scratch.get("moe.offsets", m.spec.experts + 1, 1),
        };
        let experts = m.spec.experts;
        self.step.run(&MoeGroup { ids: ids.clone(), experts, groups: groups.clone() })?;
        Ok(groups)
    }
}

/// What the chosen experts made of their rows.
struct Chosen<B: Backend> {
    x: Tensor<B>,
    ids: Tensor<B>,
    weights: Tensor<B>,
    groups: Option<ExpertGroups<B>>,
}
