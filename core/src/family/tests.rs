//! Spellings and defaults of configs.

use super::*;
use crate::model::spec::{Mamba2Spec, MixerSpec, MoeSpec};
use serde_json::json;

fn nano() -> Value {
    let text = include_str!("../../fixtures/geometries/nemotron-3-nano-nvfp4.json");
    serde_json::from_str::<Value>(text).unwrap()["config"].clone()
}

fn with(mut config: Value, keys: &[(&str, Value)]) -> ModelSpec {
    for (key, value) in keys {
        config[*key] = value.clone();
    }
    spec(&config, None).unwrap()
}

fn without(config: &Value, key: &str) -> Value {
    let mut config = config.clone();
    config.as_object_mut().unwrap().remove(key);
    config
}

fn mamba2(spec: &ModelSpec) -> &Mamba2Spec {
    spec.blocks
        .iter()
        .flat_map(|b| &b.mixers)
        .find_map(|m| match m {
            MixerSpec::Mamba2(m) => Some(m),
            _ => None,
        })
        .unwrap()
}

fn moe(spec: &ModelSpec) -> &MoeSpec {
    spec.blocks
        .iter()
        .flat_map(|b| &b.mixers)
        .find_map(|m| match m {
            MixerSpec::Moe(m) => Some(m),
            _ => None,
        })
        .unwrap()
}

#[test]
fn the_published_config_gives_the_published_model() {
    let spec = spec(&nano(), None).unwrap();
    let kinds: Vec<_> = spec.blocks.iter().map(|b| b.mixers[0].kind()).collect();
    let count = |kind| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!((count("mamba2"), count("attention"), count("moe"), count("mlp")), (23, 6, 23, 0));
    let mixer = mamba2(&spec);
    assert_eq!((mixer.inner(), mixer.conv_channels(), mixer.projection()), (4096, 6144, 10304));
    assert_eq!(mixer.dt_limit, [0.0, f32::INFINITY]);
    let experts = moe(&spec);
    assert_eq!((experts.up.names.len(), experts.rule.top_k, experts.rule.scale), (128, 6, 2.5));
    assert_eq!(experts.shared.as_ref().unwrap().width, 3712);
    assert_eq!(spec.context, 262_144);
}

#[test]
fn lists_of_names_say_the_same_as_patterns() {
    let published = spec(&nano(), None).unwrap();
    for names in [["mamba", "attention"], ["linear_attention", "full_attention"]] {
        let list: Vec<&str> = published
            .blocks
            .iter()
            .map(|b| match b.mixers[0].kind() {
                "mamba2" => names[0],
                "attention" => names[1],
                kind => kind,
            })
            .collect();
        let config = without(&nano(), "hybrid_override_pattern");
        assert_eq!(with(config, &[("layers_block_type", json!(list))]), published);
    }
}

#[test]
fn other_spellings_of_keys_are_read() {
    let pairs = [
        ("n_groups", "mamba_n_groups"),
        ("conv_kernel", "mamba_d_conv"),
        ("use_conv_bias", "mamba_conv_bias"),
        ("chunk_size", "mamba_chunk_size"),
        ("expand", "mamba_expand"),
        ("n_routed_experts", "num_local_experts"),
        ("time_step_min", "mamba_dt_min"),
        ("torch_dtype", "dtype"),
        ("head_dim", "attention_head_dim"),
    ];
    let published = spec(&nano(), None).unwrap();
    for (key, alias) in pairs {
        let value = nano()[key].clone();
        assert_eq!(with(without(&nano(), key), &[(alias, value)]), published, "{alias}");
    }
}

#[test]
fn time_step_limits_are_read_in_every_spelling() {
    for key in ["time_step_limit", "mamba_dt_limit"] {
        for infinity in [json!("Infinity"), json!({"__float__": "Infinity"}), json!("inf")] {
            let spec = with(nano(), &[(key, json!([0.001, infinity]))]);
            assert_eq!(mamba2(&spec).dt_limit, [0.001, f32::INFINITY]);
        }
    }
    let spec = with(nano(), &[("time_step_limit", json!([0.0, 0.5]))]);
    assert_eq!(mamba2(&spec).dt_limit, [0.0, 0.5]);
    // The bounds of initialisation are not the bounds of dt.
    let spec = with(nano(), &[("time_step_min", json!(0.5)), ("time_step_max", json!(0.6))]);
    assert_eq!(mamba2(&spec).dt_limit, [0.0, f32::INFINITY]);
}

#[test]
fn the_inner_width_is_heads_times_head_dim_and_not_expand() {
    let spec = with(nano(), &[("expand", json!(7)), ("mamba_head_dim", json!(48))]);
    assert_eq!(mamba2(&spec).inner(), 64 * 48);
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let bare = json!({"model_type": "nemotron_h", "hybrid_override_pattern": "ME*-"});
    let spec = spec(&bare, None).unwrap();
    assert_eq!((spec.vocabulary, spec.hidden, spec.context), (131_072, 4096, 4096));
    let mixer = mamba2(&spec);
    assert_eq!((mixer.heads, mixer.head_dim, mixer.groups, mixer.conv_width), (128, 64, 8, 4));
    assert!(mixer.conv_bias.is_some() && mixer.in_proj.bias.is_none());
    let experts = moe(&spec);
    assert_eq!((experts.experts, experts.width, experts.rule.top_k), (8, 7688, 2));
    assert_eq!((experts.rule.scale, experts.rule.normalise), (1.0, Some(1e-20)));
    assert_ne!(spec.head, spec.embedding);
}

#[test]
fn biases_follow_their_keys() {
    let bare = json!({"model_type": "nemotron_h", "hybrid_override_pattern": "M*-"});
    let all = with(
        bare,
        &[
            ("use_bias", json!(true)),
            ("attention_bias", json!(true)),
            ("mlp_bias", json!(true)),
            ("use_conv_bias", json!(false)),
        ],
    );
    let names: Vec<&str> = all.params().iter().map(|p| p.name.as_str()).collect();
    for (layer, linears) in [
        (0, &["in_proj", "out_proj"][..]),
        (1, &["q_proj", "k_proj", "v_proj", "o_proj"]),
        (2, &["up_proj", "down_proj"]),
    ] {
        for linear in linears {
            let name = format!("backbone.layers.{layer}.mixer.{linear}.bias");
            assert!(names.contains(&name.as_str()), "{name}");
        }
    }
    assert!(!names.contains(&"backbone.layers.0.mixer.conv1d.bias"));
}

#[test]
fn latent_experts_see_the_latent_width_and_the_shared_one_does_not() {
    let spec = with(
        nano(),
        &[("moe_latent_size", json!(1024)), ("n_group", json!(4)), ("topk_group", json!(2))],
    );
    let experts = moe(&spec);
    assert_eq!(experts.expert_width(), 1024);
    assert_eq!((experts.down.rows, experts.router.cols), (1024, 2688));
    assert_eq!(experts.shared.as_ref().unwrap().up.weight.cols, 2688);
    assert_eq!((experts.rule.groups, experts.rule.top_groups), (4, 2));
    let none = with(nano(), &[("n_shared_experts", json!(0)), ("norm_topk_prob", json!(false))]);
    assert!(moe(&none).shared.is_none() && moe(&none).rule.normalise.is_none());
}
