//! Quantised tensors, their scales, and what is said of them.

use super::*;
use safetensors::Dtype;
use serde_json::json;

#[test]
fn quantised_tensors_whose_companions_do_not_fit() {
    let q = "backbone.layers.2.mixer.q_proj";
    let name = |suffix: &str| format!("{q}.{suffix}");
    let nvfp4 = || Files::quantised("NVFP4", &["lm_head"]);
    let fp8 = || Files::quantised("FP8", &["lm_head"]);
    assert_eq!(
        nvfp4().without(&name("weight_scale")).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is U8 [32, 16], but its scale `backbone.layers.2.mixer.q_proj.weight_scale` is missing; download the checkpoint again"
    );
    assert_eq!(
        nvfp4().without(&name("weight_scale_2")).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is U8 [32, 16], but its scale `backbone.layers.2.mixer.q_proj.weight_scale_2` is missing; download the checkpoint again"
    );
    assert_eq!(
        fp8().without(&name("weight_scale")).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is F8_E4M3 [32, 32], but its scale `backbone.layers.2.mixer.q_proj.weight_scale` is missing; download the checkpoint again"
    );
    assert_eq!(
        nvfp4().tensor(&name("weight"), Dtype::U8, &[32, 32]).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight`: shape [32, 32], want [32, 16] by config.json, two codes a byte"
    );
    assert_eq!(
        nvfp4().tensor(&name("weight_scale"), Dtype::F8_E4M3, &[32, 1]).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight_scale`: F8_E4M3 [32, 1], want F8_E4M3 [32, 2] (a scale for every 16 columns)"
    );
    let odd =
        Files::new(config()).tensor("backbone.layers.3.mixer.up_proj.weight", Dtype::U8, &[40, 16]);
    assert_eq!(
        odd.key("intermediate_size", json!(40))
            .tensor("backbone.layers.3.mixer.down_proj.weight", Dtype::U8, &[32, 20])
            .tensor("backbone.layers.3.mixer.up_proj.weight", Dtype::F32, &[40, 32])
            .refusal(),
        "tensor `backbone.layers.3.mixer.down_proj.weight`: 40 columns are no multiple of 16, the group of NVFP4"
    );
    assert_eq!(
        nvfp4()
            .tensor("backbone.layers.1.mixer.experts.2.up_proj.weight", Dtype::BF16, &[16, 32])
            .refusal(),
        "tensor `backbone.layers.1.mixer.experts.2.up_proj.weight` is stored as bf16, `backbone.layers.1.mixer.experts.0.up_proj.weight` of the same bank of experts as nvfp4; a bank has one format"
    );
}

#[test]
fn scales_that_are_no_positive_numbers() {
    let name = "backbone.layers.2.mixer.q_proj.weight_scale_2";
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (0.0, "0"), (-1.0, "-1")] {
        let checkpoint =
            Files::quantised("NVFP4", &["lm_head"]).scalar(name, value).open().unwrap();
        let weights = checkpoint.spec().weights();
        let weight = weights.iter().find(|w| w.names[0].contains("q_proj")).unwrap();
        assert_eq!(
            pollster::block_on(checkpoint.weight(weight)).err().unwrap().to_string(),
            format!(
                "tensor `{name}`: the scale is {shown}, want a finite number above 0; the checkpoint is damaged, download it again"
            )
        );
    }
}

#[test]
fn block_scales_are_checked_as_they_are_read() {
    let mut files = Files::quantised("NVFP4", &["lm_head"]);
    let name = "backbone.layers.2.mixer.q_proj.weight_scale";
    files.tensors.get_mut(name).unwrap().2[7] = 0xff;
    let checkpoint = files.open().unwrap();
    let weights = checkpoint.spec().weights();
    let weight = weights.iter().find(|w| w.names[0].contains("q_proj")).unwrap();
    let stored = pollster::block_on(checkpoint.weight(weight)).unwrap();
    let scales = stored.parts[0].scales.as_ref().unwrap();
    let text = pollster::block_on(scales.all()).unwrap_err().to_string();
    assert_eq!(
        text,
        format!(
            "tensor `{name}`: a block scale is NaN (byte {} of its file); the checkpoint is damaged, download it again",
            scales.range.start + 7
        )
    );
    assert!(pollster::block_on(scales.part(8..16)).is_ok());
}

#[test]
fn declarations_that_the_tensors_contradict() {
    let said = |quant: Value| {
        let mut files = Files::quantised("NVFP4", &["lm_head"]);
        files.others = vec![("hf_quant_config.json".into(), quant.to_string().into())];
        files.refusal()
    };
    assert_eq!(
        said(json!({"quantization": {"quant_algo": "FP8"}})),
        "tensor `backbone.layers.0.mixer.in_proj.weight` is stored as nvfp4, but hf_quant_config.json says fp8; download the checkpoint again"
    );
    assert_eq!(
        said(
            json!({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["backbone.layers.0.mixer"]}})
        ),
        "tensor `backbone.layers.0.mixer.in_proj.weight` is stored as nvfp4, but hf_quant_config.json excludes it from quantisation; download the checkpoint again"
    );
    assert_eq!(
        said(
            json!({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"backbone.layers.0.mixer.in_proj": {"quant_algo": "NVFP4"}}}})
        ),
        "tensor `backbone.layers.0.mixer.out_proj.weight` is stored as nvfp4, but hf_quant_config.json does not say that it is quantised; download the checkpoint again"
    );
    assert_eq!(
        said(json!({"quantization": {"quant_algo": null}})),
        "tensor `backbone.layers.0.mixer.in_proj.weight` is stored as nvfp4, but hf_quant_config.json does not say that it is quantised; download the checkpoint again"
    );
    assert_eq!(
        said(json!({"quantization": {"quant_algo": "W4A8_AWQ"}})),
        "hf_quant_config.json: quant_algo is \"W4A8_AWQ\", which is not supported; want NVFP4, FP8 or MIXED_PRECISION of both"
    );
    assert_eq!(
        said(json!({"quantization": {"quant_algo": "NVFP4", "group_size": 32}})),
        "hf_quant_config.json: group_size is 32, want 16"
    );
    assert_eq!(said(json!({})), "hf_quant_config.json: no `quantization`; download it again");
    let layer = "backbone.layers.2.mixer.q_proj";
    let mixed = json!({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {layer: {"quant_algo": "FP8"}}});
    assert_eq!(
        tiny().key("quantization_config", mixed).refusal(),
        "tensor `backbone.layers.2.mixer.q_proj.weight` is stored as f32, but config.json quantization_config says fp8; download the checkpoint again"
    );
}
