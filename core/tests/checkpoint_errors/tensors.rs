//! Tensors that are missing, misshapen, unread or of an unknown form.

use super::*;
use safetensors::Dtype;
use serde_json::json;

#[test]
fn tensors_that_are_missing_misshapen_or_unread() {
    assert_eq!(
        tiny().without("lm_head.weight").refusal(),
        "tensor `lm_head.weight` is missing, want [16, 32]: config.json does not tie the head to the embedding (tie_word_embeddings); download the checkpoint again"
    );
    assert_eq!(
        tiny().without("backbone.layers.0.mixer.A_log").refusal(),
        "tensor `backbone.layers.0.mixer.A_log` is missing, want [4] by config.json; download the checkpoint again"
    );
    assert_eq!(
        tiny().without("backbone.layers.1.mixer.experts.3.up_proj.weight").refusal(),
        "tensor `backbone.layers.1.mixer.experts.3.up_proj.weight` is missing, want [16, 32] by config.json; download the checkpoint again"
    );
    assert_eq!(
        tiny().tensor("backbone.layers.2.mixer.q_proj.weight", Dtype::F32, &[32, 31]).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight`: shape [32, 31], want [32, 32] by config.json"
    );
    assert_eq!(
        tiny().tensor("backbone.layers.0.mixer.conv1d.weight", Dtype::F32, &[64, 1, 3]).refusal(),
        "tensor `backbone.layers.0.mixer.conv1d.weight`: shape [64, 1, 3], want [64, 4] by config.json (dimensions of 1 aside)"
    );
    assert_eq!(
        tiny().tensor("backbone.layers.0.norm.weight", Dtype::F64, &[32]).refusal(),
        "tensor `backbone.layers.0.norm.weight` is F64 [32], want F32, F16 or BF16 [32]"
    );
    assert_eq!(
        tiny().tensor("backbone.layers.2.mixer.q_proj.weight", Dtype::I8, &[32, 32]).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is I8 [32, 32], not supported; want F32, F16, BF16, NVFP4 (U8 with weight_scale and weight_scale_2) or FP8 (F8_E4M3 with weight_scale)"
    );
    assert_eq!(
        tiny().tensor("backbone.layers.3.mixer.gate_proj.weight", Dtype::F32, &[48, 32]).refusal(),
        "nothing in nemotron_h reads tensor `backbone.layers.3.mixer.gate_proj.weight` (F32 [48, 32]); config.json belongs to another checkpoint, or the model has parts that are not supported"
    );
    let mut many = tiny();
    for n in 0..5 {
        many = many.tensor(&format!("vision.{n}"), Dtype::BF16, &[2]);
    }
    assert_eq!(
        many.refusal(),
        "nothing in nemotron_h reads tensor `vision.0` (BF16 [2]), `vision.1` (BF16 [2]), `vision.2` (BF16 [2]) and 2 more; config.json belongs to another checkpoint, or the model has parts that are not supported"
    );
}

#[test]
fn known_tensors_that_are_not_run_have_a_reason() {
    let files = tiny()
        .tensor("mtp.layers.0.enorm.weight", Dtype::BF16, &[32])
        .tensor("backbone.layers.2.mixer.k_proj.k_scale", Dtype::F32, &[])
        .tensor("backbone.layers.2.mixer.q_proj.input_scale", Dtype::F32, &[]);
    let inventory = files.open().unwrap().inventory().unwrap();
    let unused: Vec<_> =
        inventory.unused.iter().map(|u| (u.name.as_str(), u.bytes, u.reason)).collect();
    assert_eq!(
        unused,
        [
            (
                "backbone.layers.2.mixer.k_proj.k_scale",
                4,
                "scales an FP8 key/value cache; here keys and values are not FP8"
            ),
            (
                "backbone.layers.2.mixer.q_proj.input_scale",
                4,
                "scales activations for quantised arithmetic; here activations are not quantised"
            ),
            (
                "mtp.layers.0.enorm.weight",
                64,
                "predicts tokens further ahead, for speculation; decoding is one token at a time"
            ),
        ]
    );
    assert_eq!(inventory.tensors(), files.tensors.len());
    let tied = tiny().key("tie_word_embeddings", json!(true));
    let unused = tied.open().unwrap().inventory().unwrap().unused;
    assert_eq!(unused[0].reason, "tied: the embedding is the head");
    tied.without("lm_head.weight").open().unwrap();
}

#[test]
fn formats_that_are_not_supported() {
    let q = "backbone.layers.2.mixer.q_proj";
    let name = |suffix: &str| format!("{q}.{suffix}");
    let without = || tiny().without(&name("weight"));
    assert_eq!(
        without().tensor(&name("weight_packed"), Dtype::U8, &[32, 16]).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is packed by compressed-tensors (weight_packed), which is not supported; use NVIDIA's modelopt checkpoint or the unquantised one"
    );
    assert_eq!(
        without().tensor(&name("qweight"), Dtype::I32, &[4, 32]).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is packed by GPTQ or AWQ (qweight), which is not supported; use the unquantised checkpoint"
    );
    assert_eq!(
        without().tensor(&name("weight_blocks"), Dtype::U8, &[32, 16]).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is packed as MXFP4 (blocks), which is not supported; use the unquantised checkpoint"
    );
    assert_eq!(
        tiny()
            .tensor(&name("weight"), Dtype::U32, &[32, 4])
            .tensor(&name("scales"), Dtype::BF16, &[32, 1])
            .refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is U32 [32, 4], quantised by MLX, which is not supported; use the original checkpoint"
    );
    assert_eq!(
        tiny()
            .tensor(&name("weight"), Dtype::F8_E4M3, &[32, 32])
            .tensor(&name("weight_scale_inv"), Dtype::F32, &[1, 1])
            .refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is FP8 with a scale for every block (weight_scale_inv), which is not supported; use a checkpoint with one scale a matrix"
    );
    assert_eq!(
        tiny()
            .tensor(&name("weight"), Dtype::F8_E4M3, &[32, 32])
            .tensor(&name("weight_scale"), Dtype::F32, &[32, 1])
            .refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight_scale`: F32 [32, 1], want F32 [] (one scale for the matrix); scales per channel or block are not supported"
    );
    assert_eq!(
        tiny().tensor(&name("weight"), Dtype::F8_E5M2, &[32, 32]).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is F8_E5M2 [32, 32], not supported; want F32, F16, BF16, NVFP4 (U8 with weight_scale and weight_scale_2) or FP8 (F8_E4M3 with weight_scale)"
    );
    assert_eq!(
        tiny().key("quantization", json!({"group_size": 64, "bits": 4})).refusal(),
        "config.json: `quantization` says that MLX quantised this checkpoint, which is not supported; use the original one"
    );
    for method in ["compressed-tensors", "fp8", "bitsandbytes", "gptq"] {
        assert_eq!(
            tiny().key("quantization_config", json!({"quant_method": method})).refusal(),
            format!(
                "config.json: quantised by {method}, which is not supported; use NVIDIA's modelopt checkpoint (NVFP4 or FP8) or the unquantised one"
            )
        );
    }
}
