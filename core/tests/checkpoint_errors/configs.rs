//! Configs that are not understood.

use super::*;
use serde_json::json;

#[test]
fn configs_of_other_families_or_none() {
    let text = |config: &str| {
        let mut files = tiny().files();
        files.retain(|(name, _)| name != "config.json");
        files.push(("config.json".into(), config.to_owned().into()));
        refusal(files)
    };
    assert_eq!(
        text("{"),
        "config.json: not valid JSON: EOF while parsing an object at line 1 column 1"
    );
    assert_eq!(text("[]"), "config.json: want an object of keys and values");
    assert_eq!(text("{}"), "config.json: no model_type; is this a model's configuration?");
    assert_eq!(
        with_key("model_type", json!("llama")),
        "config.json: model_type \"llama\" is not supported; supported: nemotron_h"
    );
    assert_eq!(
        with_key("model_type", json!("nemotron_h_puzzle")),
        "config.json: model_type \"nemotron_h_puzzle\" is not supported (its layers differ in width one by one, which is not supported); supported: nemotron_h"
    );
}

#[test]
fn patterns_that_are_not_understood() {
    assert_eq!(
        with_key("hybrid_override_pattern", json!("ME*X")),
        "config.json: hybrid_override_pattern has 'X' at position 3 of 4, want M (mamba), * (attention), - (mlp) or E (experts)"
    );
    assert_eq!(
        with_key("hybrid_override_pattern", json!("ME*")),
        "config.json: num_hidden_layers is 4, but the pattern has 3 layers"
    );
    assert_eq!(
        with_key("hybrid_override_pattern", Value::Null),
        "config.json: neither hybrid_override_pattern nor layers_block_type says what the layers are"
    );
    assert_eq!(
        with_key("layers_block_type", json!(["mamba", "moe", "attention", "conv"])),
        "config.json: layers_block_type has \"conv\" at position 3, want mamba, attention, mlp or moe"
    );
    assert_eq!(
        with_key("layers_block_type", json!(["mamba", "moe", "mlp", "attention"])),
        "config.json: hybrid_override_pattern and layers_block_type disagree"
    );
}

/// Key, its value as JSON, the refusal.
const KEYS: &[(&str, &str, &str)] = &[
    (
        "sliding_window",
        "4096",
        "config.json: sliding_window is 4096 (attention over a window), which is not supported",
    ),
    (
        "mlp_hidden_act",
        r#""gelu_pytorch_tanh""#,
        "config.json: mlp_hidden_act is \"gelu_pytorch_tanh\", which is not supported; want \"relu2\", \"silu\" or \"gelu\"",
    ),
    (
        "mamba_hidden_act",
        r#""relu""#,
        "config.json: mamba_hidden_act is \"relu\", which is not supported; want \"silu\"",
    ),
    (
        "use_bias",
        "true",
        "tensor `backbone.layers.0.mixer.in_proj.bias` is missing, want [100] by config.json; download the checkpoint again",
    ),
    (
        "mamba_proj_bias",
        "true",
        "config.json: use_bias is false and mamba_proj_bias is true; which of them the projections follow is not defined",
    ),
    ("mlp_bias", "true", "config.json: mlp_bias is true, biases of experts are not supported"),
    (
        "attention_bias",
        "true",
        "tensor `backbone.layers.2.mixer.q_proj.bias` is missing, want [32] by config.json; download the checkpoint again",
    ),
    (
        "n_shared_experts",
        "2",
        "config.json: n_shared_experts is 2, want 0 or 1; readers disagree on what more means",
    ),
    (
        "intermediate_size",
        "[48, 48]",
        "config.json: intermediate_size is a list, a width for every layer, which is not supported",
    ),
    (
        "residual_multiplier",
        "0.22",
        "config.json: residual_multiplier is 0.22 and may change the arithmetic, but is not understood",
    ),
    (
        "logits_scaling",
        "8",
        "config.json: logits_scaling is 8 and may change the arithmetic, but is not understood",
    ),
    (
        "final_logit_softcapping",
        "30.0",
        "config.json: final_logit_softcapping is 30.0 and may change the arithmetic, but is not understood",
    ),
    (
        "norm_before_gate",
        "true",
        "config.json: norm_before_gate is true and may change the arithmetic, but is not understood",
    ),
];

#[test]
fn keys_that_change_the_arithmetic() {
    for (key, value, want) in KEYS {
        assert_eq!(with_key(key, serde_json::from_str(value).unwrap()), *want, "{key}");
    }
    tiny().key("some_new_note", json!("x")).open().unwrap();
    tiny().key("norm_before_gate", json!(false)).open().unwrap();
}

/// Key, its value as JSON, the refusal.
const VALUES: &[(&str, &str, &str)] = &[
    (
        "hidden_size",
        r#""wide""#,
        "config.json: hidden_size is \"wide\", want a whole number up to 16777216",
    ),
    ("hidden_size", "-1", "config.json: hidden_size is -1, want a whole number up to 16777216"),
    ("vocab_size", "0", "config.json: vocab_size is 0, want at least 1"),
    (
        "mamba_num_heads",
        "1099511627776",
        "config.json: mamba_num_heads is 1099511627776, want a whole number up to 16777216",
    ),
    (
        "mamba_num_heads",
        "4194304",
        "config.json: mamba_num_heads x mamba_head_dim is 4194304 x 8, too large to be a width",
    ),
    ("n_groups", "3", "config.json: n_groups is 3, which does not divide mamba_num_heads, 4"),
    (
        "num_key_value_heads",
        "3",
        "config.json: num_key_value_heads is 3, which does not divide num_attention_heads, 4",
    ),
    (
        "num_experts_per_tok",
        "5",
        "config.json: num_experts_per_tok is 5, but 4 experts can be chosen from",
    ),
    (
        "n_group",
        "3",
        "config.json: n_group is 3 and topk_group 1 with 4 experts; want groups that divide the experts, and no more chosen than there are",
    ),
    (
        "n_routed_experts",
        "10000000",
        "config.json: n_routed_experts is 10000000 in 1 blocks, 20000000 matrices, but the checkpoint has 33 tensors in all",
    ),
    (
        "layer_norm_epsilon",
        r#""tiny""#,
        "config.json: layer_norm_epsilon is \"tiny\", want a number",
    ),
    ("use_conv_bias", "1", "config.json: use_conv_bias is 1, want true or false"),
    (
        "time_step_limit",
        "[0.1, 0.0]",
        "config.json: time_step_limit is [0.1,0.0], want [lower, upper], where upper may be Infinity",
    ),
    (
        "time_step_limit",
        r#"["NaN", 1.0]"#,
        "config.json: time_step_limit is [\"NaN\",1.0], want [lower, upper], where upper may be Infinity",
    ),
    (
        "mamba_n_groups",
        "4",
        "config.json: n_groups is 2 and mamba_n_groups is 4, two spellings of one key",
    ),
    ("norm_eps", "1e-6", "not refused"),
];

#[test]
fn values_that_make_no_sense() {
    for (key, value, want) in VALUES {
        assert_eq!(with_key(key, serde_json::from_str(value).unwrap()), *want, "{key}");
    }
    assert_eq!(
        tiny().key("norm_eps", json!(1e-6)).key("layer_norm_epsilon", json!(1e-5)).refusal(),
        "config.json: layer_norm_epsilon is 0.00001 and norm_eps is 1e-6, two spellings of one key"
    );
}
