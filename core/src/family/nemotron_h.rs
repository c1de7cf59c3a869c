//! Nemotron-H: a flat list of Mamba2, attention, MLP and mixture-of-experts blocks, one mixer each.
//!
//! Semantics: NVIDIA's published modeling_nemotron_h.py; defaults of absent keys: transformers 5.24. There is no position
//! embedding: the rope keys of published configs are inert.

use super::Config;
use super::pattern::{Kind, kinds};
use crate::error::{Error, Result};
use crate::model::spec::*;
use crate::ops::{Activation, GateOrder, RouteRule, Score};

/// Keys that the published arithmetic does not read.
const INERT: &[&str] = &[
    "chunk_size",
    "mamba_chunk_size",
    "expand",
    "mamba_expand",
    "time_step_min",
    "mamba_dt_min",
    "time_step_max",
    "mamba_dt_max",
    "time_step_floor",
    "mamba_dt_init_floor",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "use_mamba_kernels",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "num_nextn_predict_layers",
];

/// Added to the sum that routing weights are divided by.
const ROUTER_EPS: f32 = 1e-20;

/// Turns a config into a model.
pub(super) fn spec(config: &Config<'_>) -> Result<ModelSpec> {
    config.inert(INERT);
    config.absent("sliding_window", "attention over a window")?;
    let prefix = match config.has_tensor("model.embeddings.weight") {
        true => "model",
        false => "backbone",
    };
    let vocabulary = config.size(&["vocab_size"], 131_072)?;
    let hidden = config.size(&["hidden_size"], 4096)?;
    let eps = config.float(&["layer_norm_epsilon", "norm_eps", "rms_norm_eps"], 1e-5)?;
    let builder = Builder { config, prefix, hidden, eps };
    let kinds = kinds(config)?;
    let experts = kinds.iter().filter(|k| **k == Kind::Moe).count();
    builder.check_experts(experts)?;
    let blocks = kinds.iter().enumerate().map(|(layer, kind)| builder.block(layer, *kind));
    let blocks = blocks.collect::<Result<Vec<_>>>()?;
    builder.answer_for_all()?;
    let embedding = WeightRef::one(format!("{prefix}.embeddings.weight"), vocabulary, hidden);
    let mut unused = vec![(
        "mtp.".to_owned(),
        "predicts tokens further ahead, for speculation; decoding is one token at a time",
    )];
    let head = match config.flag(&["tie_word_embeddings"], false)? {
        false => WeightRef::one("lm_head.weight", vocabulary, hidden),
        true => {
            unused.push(("lm_head.weight".into(), "tied: the embedding is the head"));
            embedding.clone()
        }
    };
    Ok(ModelSpec {
        family: "nemotron_h",
        vocabulary,
        hidden,
        context: config.size(&["max_position_embeddings"], 4096)?,
        embedding,
        embedding_scale: 1.0,
        blocks,
        final_norm: builder.norm(format!("{prefix}.norm_f.weight"), hidden),
        head,
        logit_scale: 1.0,
        unused,
    })
}

struct Builder<'a> {
    config: &'a Config<'a>,
    prefix: &'static str,
    hidden: usize,
    eps: f32,
}

impl Builder<'_> {
    /// Refuses a config that promises more experts than there are tensors, before their names are made.
    fn check_experts(&self, blocks: usize) -> Result<()> {
        let experts = self.experts()?;
        let want = blocks.saturating_mul(experts).saturating_mul(2);
        match self.config.tensor_count() {
            Some(count) if want > count => Err(Error::checkpoint(format!(
                "config.json: n_routed_experts is {experts} in {blocks} blocks, {want} matrices, but the checkpoint has {count} tensors in all"
            ))),
            _ => Ok(()),
        }
    }

    fn block(&self, layer: usize, kind: Kind) -> Result<BlockSpec> {
        let stem = format!("{}.layers.{layer}", self.prefix);
        let mixer = format!("{stem}.mixer");
        let mixer = match kind {
            Kind::Mamba2 => MixerSpec::Mamba2(self.mamba2(&mixer)?),
            Kind::Attention => MixerSpec::Attention(self.attention(&mixer)?),
            Kind::Mlp => MixerSpec::Mlp(self.mlp(&mixer, self.mlp_width()?)?),
            Kind::Moe => MixerSpec::Moe(Box::new(self.moe(&mixer)?)),
        };
        let norm = self.norm(format!("{stem}.norm.weight"), self.hidden);
        Ok(BlockSpec { norm, scale: 1.0, mixers: vec![mixer] })
    }

    fn norm(&self, name: String, cols: usize) -> NormSpec {
        NormSpec { weight: ParamRef::new(name, 1, cols), eps: self.eps }
    }

    fn linear(&self, stem: &str, rows: usize, cols: usize, bias: bool) -> LinearSpec {
        LinearSpec {
            weight: WeightRef::one(format!("{stem}.weight"), rows, cols),
            bias: bias.then(|| ParamRef::new(format!("{stem}.bias"), 1, rows)),
        }
    }

    fn mamba2(&self, stem: &str) -> Result<Mamba2Spec> {
        let config = self.config;
        let heads = config.size(&["mamba_num_heads"], 128)?;
        let head_dim = config.size(&["mamba_head_dim"], 64)?;
        let state_size = config.size(&["ssm_state_size"], 128)?;
        let groups = config.size(&["n_groups", "mamba_n_groups"], 8)?;
        let conv_width = config.size(&["conv_kernel", "mamba_d_conv"], 4)?;
        if !heads.is_multiple_of(groups) {
            return Err(Error::checkpoint(format!(
                "config.json: n_groups is {groups}, which does not divide mamba_num_heads, {heads}"
            )));
        }
        let inner = width("mamba_num_heads x mamba_head_dim", heads, head_dim)?;
        let channels = inner + 2 * width("n_groups x ssm_state_size", groups, state_size)?;
        let (bias, conv_bias) = self.mamba_biases()?;
        let param = |name: &str, rows, cols| ParamRef::new(format!("{stem}.{name}"), rows, cols);
        Ok(Mamba2Spec {
            heads,
            head_dim,
            state_size,
            groups,
            conv_width,
            dt_limit: config
                .limits(&["time_step_limit", "mamba_dt_limit"], [0.0, f32::INFINITY])?,
            in_proj: self.linear(
                &format!("{stem}.in_proj"),
                inner + channels + heads,
                self.hidden,
                bias,
            ),
            conv_weight: param("conv1d.weight", channels, conv_width),
            conv_bias: conv_bias.then(|| param("conv1d.bias", 1, channels)),
            a_log: param("A_log", 1, heads),
            d: param("D", 1, heads),
            dt_bias: param("dt_bias", 1, heads),
            norm: self.norm(format!("{stem}.norm.weight"), inner),
            gate_order: GateOrder::GateThenNorm,
            out_proj: self.linear(&format!("{stem}.out_proj"), self.hidden, inner, bias),
        })
    }

    /// Whether the projections and the convolution have biases. Readers disagree on which key rules the projections.
    fn mamba_biases(&self) -> Result<(bool, bool)> {
        let config = self.config;
        match config.text(&["mamba_hidden_act"], "silu")? {
            "silu" | "swish" => {}
            other => {
                return Err(Error::checkpoint(format!(
                    "config.json: mamba_hidden_act is {other:?}, which is not supported; want \"silu\""
                )));
            }
        }
        let bias = config.flag(&["use_bias"], false)?;
        if config.flag(&["mamba_proj_bias"], bias)? != bias {
            return Err(Error::checkpoint(format!(
                "config.json: use_bias is {bias} and mamba_proj_bias is {}; which of them the projections follow is not defined",
                !bias
            )));
        }
        Ok((bias, config.flag(&["use_conv_bias", "mamba_conv_bias"], true)?))
    }

    fn attention(&self, stem: &str) -> Result<AttentionSpec> {
        let config = self.config;
        let heads = config.size(&["num_attention_heads"], 32)?;
        let kv_heads = config.size(&["num_key_value_heads"], 8)?;
        let head_dim = config.size(&["head_dim", "attention_head_dim"], 128)?;
        let bias = config.flag(&["attention_bias"], false)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::checkpoint(format!(
                "config.json: num_key_value_heads is {kv_heads}, which does not divide num_attention_heads, {heads}"
            )));
        }
        let q = width("num_attention_heads x head_dim", heads, head_dim)?;
        let kv = width("num_key_value_heads x head_dim", kv_heads, head_dim)?;
        let into =
            |name: &str, rows| self.linear(&format!("{stem}.{name}"), rows, self.hidden, bias);
        Ok(AttentionSpec {
            heads,
            kv_heads,
            head_dim,
            // Below 2^24, so exact.
            scale: (head_dim as f32).sqrt().recip(),
            rope: None,
            q: into("q_proj", q),
            k: into("k_proj", kv),
            v: into("v_proj", kv),
            o: self.linear(&format!("{stem}.o_proj"), self.hidden, q, bias),
        })
    }

    fn mlp_width(&self) -> Result<usize> {
        if let Some((key, value)) = self.config.get(&["intermediate_size"])?
            && value.is_array()
        {
            return Err(Error::checkpoint(format!(
                "config.json: {key} is a list, a width for every layer, which is not supported"
            )));
        }
        self.config.size(&["intermediate_size"], 21_504)
    }

    fn mlp(&self, stem: &str, width: usize) -> Result<MlpSpec> {
        let bias = self.config.flag(&["mlp_bias"], false)?;
        Ok(MlpSpec {
            width,
            activation: self.activation()?,
            gate: None,
            up: self.linear(&format!("{stem}.up_proj"), width, self.hidden, bias),
            down: self.linear(&format!("{stem}.down_proj"), self.hidden, width, bias),
        })
    }

    fn activation(&self) -> Result<Activation> {
        match self.config.text(&["mlp_hidden_act"], "relu2")? {
            "relu2" => Ok(Activation::Relu2),
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu" => Ok(Activation::Gelu),
            other => Err(Error::checkpoint(format!(
                "config.json: mlp_hidden_act is {other:?}, which is not supported; want \"relu2\", \"silu\" or \"gelu\""
            ))),
        }
    }

    fn experts(&self) -> Result<usize> {
        self.config.size(&["n_routed_experts", "num_local_experts"], 8)
    }

    fn moe(&self, stem: &str) -> Result<MoeSpec> {
        let config = self.config;
        if config.flag(&["mlp_bias"], false)? {
            return Err(Error::checkpoint(
                "config.json: mlp_bias is true, biases of experts are not supported",
            ));
        }
        let (experts, hidden) = (self.experts()?, self.hidden);
        let width = config.size(&["moe_intermediate_size"], 7688)?;
        let shared_width = config.size(&["moe_shared_expert_intermediate_size"], 7688)?;
        let shared = match config.count(&["n_shared_experts"], 1)? {
            0 => None,
            1 => Some(self.mlp(&format!("{stem}.shared_experts"), shared_width)?),
            n => {
                return Err(Error::checkpoint(format!(
                    "config.json: n_shared_experts is {n}, want 0 or 1; readers disagree on what more means"
                )));
            }
        };
        let latent = match config.count(&["moe_latent_size"], 0)? {
            0 => None,
            latent => Some(LatentSpec {
                width: latent,
                into: self.linear(&format!("{stem}.fc1_latent_proj"), latent, hidden, false),
                out: self.linear(&format!("{stem}.fc2_latent_proj"), hidden, latent, false),
            }),
        };
        let expert_width = latent.as_ref().map_or(hidden, |l| l.width);
        let bank = |name: &str, rows, cols| WeightRef {
            names: (0..experts).map(|e| format!("{stem}.experts.{e}.{name}.weight")).collect(),
            rows,
            cols,
        };
        Ok(MoeSpec {
            experts,
            width,
            rule: self.rule(experts)?,
            router: WeightRef::one(format!("{stem}.gate.weight"), experts, hidden),
            router_bias: Some(ParamRef::new(
                format!("{stem}.gate.e_score_correction_bias"),
                1,
                experts,
            )),
            activation: self.activation()?,
            gate: None,
            up: bank("up_proj", width, expert_width),
            down: bank("down_proj", expert_width, width),
            latent,
            shared,
        })
    }

    fn rule(&self, experts: usize) -> Result<RouteRule> {
        let config = self.config;
        let top_k = config.size(&["num_experts_per_tok"], 2)?;
        let groups = config.size(&["n_group"], 1)?;
        let top_groups = config.size(&["topk_group"], 1)?;
        if !experts.is_multiple_of(groups) || top_groups > groups {
            return Err(Error::checkpoint(format!(
                "config.json: n_group is {groups} and topk_group {top_groups} with {experts} experts; want groups that divide the experts, and no more chosen than there are"
            )));
        }
        let eligible = experts / groups * top_groups;
        if top_k > eligible {
            return Err(Error::checkpoint(format!(
                "config.json: num_experts_per_tok is {top_k}, but {eligible} experts can be chosen from"
            )));
        }
        Ok(RouteRule {
            score: Score::Sigmoid,
            top_k,
            groups,
            top_groups,
            normalise: config.flag(&["norm_topk_prob"], true)?.then_some(ROUTER_EPS),
            scale: config.float(&["routed_scaling_factor"], 1.0)?,
        })
    }

    /// Reads the keys of block kinds that this model does not have, so that they are answered for as well.
    fn answer_for_all(&self) -> Result<()> {
        self.mlp_width()?;
        self.mamba_biases()?;
        self.activation()?;
        self.config.inert(&[
            "mamba_num_heads",
            "mamba_head_dim",
            "ssm_state_size",
            "n_groups",
            "mamba_n_groups",
            "conv_kernel",
            "mamba_d_conv",
            "time_step_limit",
            "mamba_dt_limit",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "attention_head_dim",
            "attention_bias",
            "mlp_bias",
            "n_routed_experts",
            "num_local_experts",
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "n_shared_experts",
            "moe_latent_size",
            "num_experts_per_tok",
            "n_group",
            "topk_group",
            "norm_topk_prob",
            "routed_scaling_factor",
        ]);
        Ok(())
    }
}

/// A product of two sizes that is itself a width, refused where it is absurd.
fn width(name: &str, a: usize, b: usize) -> Result<usize> {
    a.checked_mul(b).filter(|w| *w <= 1 << 24).ok_or_else(|| {
        Error::checkpoint(format!("config.json: {name} is {a} x {b}, too large to be a width"))
    })
}
