//! Every refusal of the loader, with its whole text.

mod support;

use bytes::Bytes;
use safetensors::Dtype;
use serde_json::{Value, json};
use support::*;

fn tiny() -> Files {
    Files::new(config())
}

/// The refusal of the small checkpoint with one key of its config changed.
fn with_key(key: &str, value: Value) -> String {
    tiny().key(key, value).refusal()
}

/// The refusal of the small checkpoint with another file for its tensors.
fn with_file(bytes: impl Into<Bytes>) -> String {
    let mut files = tiny().small();
    files.push(("model.safetensors".into(), bytes.into()));
    refusal(files)
}

#[test]
fn the_small_checkpoints_open() {
    tiny().open().unwrap();
    Files::quantised("NVFP4", &["lm_head"]).open().unwrap();
    Files::quantised("FP8", &["lm_head", "*.conv1d"]).open().unwrap();
}

#[test]
fn files_that_are_missing_or_of_another_kind() {
    let without = |name: &str| {
        let mut files = tiny().files();
        files.retain(|(n, _)| n != name);
        files
    };
    let beside = |name: &str| {
        let mut files = without("model.safetensors");
        files.push((name.into(), Bytes::from_static(b"x")));
        refusal(files)
    };
    assert_eq!(
        refusal(without("config.json")),
        "config.json is missing; is this the folder of a checkpoint?"
    );
    assert_eq!(
        refusal(without("model.safetensors")),
        "neither model.safetensors nor model.safetensors.index.json is here; is this the folder of a checkpoint?"
    );
    assert_eq!(
        beside("model-Q4_K_M.gguf"),
        "model-Q4_K_M.gguf is GGUF, which is not read; use the original safetensors checkpoint"
    );
    assert_eq!(
        beside("pytorch_model.bin"),
        "pytorch_model.bin is a pickled PyTorch file, which is not read since it can run code; convert it with save_pretrained, which writes safetensors"
    );
    assert_eq!(
        beside("consolidated.00.pth"),
        "consolidated.00.pth is a pickled PyTorch file, which is not read since it can run code; convert it with save_pretrained, which writes safetensors"
    );
    assert_eq!(
        beside("weights.npz"),
        "weights.npz is an MLX archive, which is not read; use the original safetensors checkpoint"
    );
    assert_eq!(
        beside(SECOND),
        "model.safetensors.index.json is missing though shards such as model-00002-of-00002.safetensors are here; download it too"
    );
}

#[test]
fn headers_that_do_not_fit_their_file() {
    let whole = safetensors(&tiny().tensors);
    assert_eq!(with_file(""), "model.safetensors: the file is empty; download it again");
    assert_eq!(
        with_file("short"),
        "model.safetensors: 5 bytes are too few for a safetensors file; download it again"
    );
    assert_eq!(
        with_file("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        "model.safetensors: a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
    );
    assert_eq!(
        with_file(&[0xff; 32][..]),
        "model.safetensors: the header claims 18446744073709551615 bytes, the format allows 100000000; this is no safetensors file or a damaged one"
    );
    let short = whole.slice(..100);
    let length = u64::from_le_bytes(*whole.first_chunk().unwrap());
    assert_eq!(
        with_file(short),
        format!(
            "model.safetensors: the header claims {length} bytes, the file has 100; it is truncated, download it again"
        )
    );
    let data = whole.len() as u64 - 8 - length;
    assert_eq!(
        with_file(whole.slice(..whole.len() - 3)),
        format!(
            "model.safetensors: the tensors take {data} bytes, the file has {} after its header; it is truncated, download it again",
            data - 3
        )
    );
    let longer = [&whole[..], b"more"].concat();
    assert_eq!(
        with_file(longer),
        format!(
            "model.safetensors: the tensors take {data} bytes, the file has {} after its header; what follows them is unknown",
            data + 4
        )
    );
}

#[test]
fn headers_that_contradict_themselves() {
    let tensor = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let one = |dtype: &str, shape: &str, begin, end, data| {
        with_file(raw(&format!(r#"{{"a":{}}}"#, tensor(dtype, shape, begin, end)), data))
    };
    let two = |second: String| {
        with_file(raw(&format!(r#"{{"a":{},"b":{second}}}"#, tensor("F32", "[2]", 0, 8)), 16))
    };
    assert_eq!(
        with_file(raw("{nonsense", 0)),
        "model.safetensors: the header is not valid: key must be a string at line 1 column 2"
    );
    assert_eq!(
        with_file(raw("[]", 0)),
        "model.safetensors: the header is not valid: invalid type: sequence, expected an object of tensors at line 1 column 0"
    );
    assert_eq!(with_file(raw("{}", 0)), "model.safetensors holds no tensors");
    assert_eq!(
        one("F32", "[2, 3]", 0, 23, 23),
        "model.safetensors: tensor `a`: bytes 0 to 23, but F32 [2, 3] takes 24"
    );
    assert_eq!(
        one("F32", "[2]", 8, 0, 8),
        "model.safetensors: tensor `a`: bytes 8 to 0, but F32 [2] takes 8"
    );
    assert_eq!(
        one("F32", "[4294967296, 4294967296]", 0, 8, 8),
        "model.safetensors: tensor `a`: F32 [4294967296, 4294967296] is no size in whole bytes"
    );
    assert_eq!(
        one("F4", "[3]", 0, 1, 1),
        "model.safetensors: tensor `a`: F4 [3] is no size in whole bytes"
    );
    assert_eq!(
        two(tensor("F32", "[2]", 4, 12)),
        "model.safetensors: tensor `b`: begins at byte 4 of the data, want 8: tensors neither overlap nor leave holes"
    );
    assert_eq!(
        two(tensor("F32", "[1]", 12, 16)),
        "model.safetensors: tensor `b`: begins at byte 12 of the data, want 8: tensors neither overlap nor leave holes"
    );
    let twice =
        format!(r#"{{"a":{},"a":{}}}"#, tensor("F32", "[2]", 0, 8), tensor("F32", "[2]", 8, 16));
    assert_eq!(with_file(raw(&twice, 16)), "model.safetensors: tensor `a`: described twice");
    assert_eq!(
        one("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4, 4),
        "model.safetensors: the header is not valid: tensor `a`: 9 dimensions, at most 8 at line 1 column 70"
    );
    let text = one("F9", "[1]", 0, 4, 4);
    let start = "model.safetensors: the header is not valid: tensor `a`: unknown variant `F9`, expected one of `BOOL`";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn shards_and_their_index() {
    let tiny = tiny();
    let (first, second, index) = tiny.shards();
    let files = |index: &Value, shards: &[(&str, Bytes)]| {
        let mut files = tiny.small();
        files.push((INDEX.into(), index.to_string().into()));
        files.extend(shards.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())));
        files
    };
    let (one, two) = ((FIRST, safetensors(&first)), (SECOND, safetensors(&second)));
    assert_eq!(refusal(files(&index, &[one.clone(), two.clone()])), "not refused");
    assert_eq!(
        refusal(files(&index, &[one.clone()])),
        "model-00002-of-00002.safetensors is missing: model.safetensors.index.json names it among 2 shards; download it into the same folder"
    );
    assert_eq!(
        refusal(files(&index, &[one.clone(), (SECOND, Bytes::new())])),
        "model-00002-of-00002.safetensors: the file is empty; download it again"
    );
    assert_eq!(
        refusal(files(&index, &[one.clone(), two.clone(), ("model.safetensors", two.1.clone())])),
        "model.safetensors is here beside model.safetensors.index.json, which does not name it; remove the one that is out of date"
    );
    let mut both = second.clone();
    both.insert("backbone.embeddings.weight".into(), first["backbone.embeddings.weight"].clone());
    assert_eq!(
        refusal(files(&index, &[one.clone(), (SECOND, safetensors(&both))])),
        "tensor `backbone.embeddings.weight` is in two shards, model-00001-of-00002.safetensors and model-00002-of-00002.safetensors; download both again"
    );
    let mut stale = index.clone();
    stale["weight_map"]["backbone.gone.weight"] = json!(FIRST);
    assert_eq!(
        refusal(files(&stale, &[one.clone(), two.clone()])),
        "model.safetensors.index.json is out of date: it says that `backbone.gone.weight` is in model-00001-of-00002.safetensors, but it is not there; download the index and the shards again"
    );
    let mut stale = index.clone();
    stale["weight_map"]["lm_head.weight"] = json!(FIRST);
    assert_eq!(
        refusal(files(&stale, &[one.clone(), two.clone()])),
        "model.safetensors.index.json is out of date: it says that `lm_head.weight` is in model-00001-of-00002.safetensors, but it is in model-00002-of-00002.safetensors; download the index and the shards again"
    );
    let mut stale = index.clone();
    stale["weight_map"].as_object_mut().unwrap().remove("lm_head.weight");
    assert_eq!(
        refusal(files(&stale, &[one.clone(), two.clone()])),
        "model.safetensors.index.json is out of date: it does not name `lm_head.weight`, which is in model-00002-of-00002.safetensors; download the index and the shards again"
    );
    let mut escape = index;
    escape["weight_map"]["lm_head.weight"] = json!("../other.safetensors");
    assert_eq!(
        refusal(files(&escape, &[one.clone(), two.clone()])),
        "model.safetensors.index.json: `lm_head.weight` is said to be in \"../other.safetensors\", want the plain name of a .safetensors file"
    );
    assert_eq!(
        refusal(files(&json!({}), &[one.clone()])),
        "model.safetensors.index.json: no weight_map; download it again"
    );
    assert_eq!(
        refusal(files(&json!({"weight_map": {}}), &[one])),
        "model.safetensors.index.json: weight_map is empty; download it again"
    );
}

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

#[test]
fn keys_that_change_the_arithmetic() {
    let cases = [
        (
            "sliding_window",
            json!(4096),
            "config.json: sliding_window is 4096 (attention over a window), which is not supported",
        ),
        (
            "mlp_hidden_act",
            json!("gelu_pytorch_tanh"),
            "config.json: mlp_hidden_act is \"gelu_pytorch_tanh\", which is not supported; want \"relu2\", \"silu\" or \"gelu\"",
        ),
        (
            "mamba_hidden_act",
            json!("relu"),
            "config.json: mamba_hidden_act is \"relu\", which is not supported; want \"silu\"",
        ),
        (
            "use_bias",
            json!(true),
            "tensor `backbone.layers.0.mixer.in_proj.bias` is missing, want [100] by config.json; download the checkpoint again",
        ),
        (
            "mamba_proj_bias",
            json!(true),
            "config.json: use_bias is false and mamba_proj_bias is true; which of them the projections follow is not defined",
        ),
        (
            "mlp_bias",
            json!(true),
            "config.json: mlp_bias is true, biases of experts are not supported",
        ),
        (
            "attention_bias",
            json!(true),
            "tensor `backbone.layers.2.mixer.q_proj.bias` is missing, want [32] by config.json; download the checkpoint again",
        ),
        (
            "n_shared_experts",
            json!(2),
            "config.json: n_shared_experts is 2, want 0 or 1; readers disagree on what more means",
        ),
        (
            "intermediate_size",
            json!([48, 48]),
            "config.json: intermediate_size is a list, a width for every layer, which is not supported",
        ),
        (
            "residual_multiplier",
            json!(0.22),
            "config.json: residual_multiplier is 0.22 and may change the arithmetic, but is not understood",
        ),
        (
            "logits_scaling",
            json!(8),
            "config.json: logits_scaling is 8 and may change the arithmetic, but is not understood",
        ),
        (
            "final_logit_softcapping",
            json!(30.0),
            "config.json: final_logit_softcapping is 30.0 and may change the arithmetic, but is not understood",
        ),
        (
            "norm_before_gate",
            json!(true),
            "config.json: norm_before_gate is true and may change the arithmetic, but is not understood",
        ),
    ];
    for (key, value, want) in cases {
        assert_eq!(with_key(key, value), want, "{key}");
    }
    tiny().key("some_new_note", json!("x")).open().unwrap();
    tiny().key("norm_before_gate", json!(false)).open().unwrap();
}

#[test]
fn values_that_make_no_sense() {
    let cases = [
        (
            "hidden_size",
            json!("wide"),
            "config.json: hidden_size is \"wide\", want a whole number up to 16777216",
        ),
        (
            "hidden_size",
            json!(-1),
            "config.json: hidden_size is -1, want a whole number up to 16777216",
        ),
        ("vocab_size", json!(0), "config.json: vocab_size is 0, want at least 1"),
        (
            "mamba_num_heads",
            json!(1u64 << 40),
            "config.json: mamba_num_heads is 1099511627776, want a whole number up to 16777216",
        ),
        (
            "mamba_num_heads",
            json!(1 << 22),
            "config.json: mamba_num_heads x mamba_head_dim is 4194304 x 8, too large to be a width",
        ),
        (
            "n_groups",
            json!(3),
            "config.json: n_groups is 3, which does not divide mamba_num_heads, 4",
        ),
        (
            "num_key_value_heads",
            json!(3),
            "config.json: num_key_value_heads is 3, which does not divide num_attention_heads, 4",
        ),
        (
            "num_experts_per_tok",
            json!(5),
            "config.json: num_experts_per_tok is 5, but 4 experts can be chosen from",
        ),
        (
            "n_group",
            json!(3),
            "config.json: n_group is 3 and topk_group 1 with 4 experts; want groups that divide the experts, and no more chosen than there are",
        ),
        (
            "n_routed_experts",
            json!(10_000_000),
            "config.json: n_routed_experts is 10000000 in 1 blocks, 20000000 matrices, but the checkpoint has 33 tensors in all",
        ),
        (
            "layer_norm_epsilon",
            json!("tiny"),
            "config.json: layer_norm_epsilon is \"tiny\", want a number",
        ),
        ("use_conv_bias", json!(1), "config.json: use_conv_bias is 1, want true or false"),
        (
            "time_step_limit",
            json!([0.1, 0.0]),
            "config.json: time_step_limit is [0.1,0.0], want [lower, upper], where upper may be Infinity",
        ),
        (
            "time_step_limit",
            json!(["NaN", 1.0]),
            "config.json: time_step_limit is [\"NaN\",1.0], want [lower, upper], where upper may be Infinity",
        ),
        (
            "mamba_n_groups",
            json!(4),
            "config.json: n_groups is 2 and mamba_n_groups is 4, two spellings of one key",
        ),
        ("norm_eps", json!(1e-6), "not refused"),
    ];
    for (key, value, want) in cases {
        assert_eq!(with_key(key, value), want, "{key}");
    }
    assert_eq!(
        tiny().key("norm_eps", json!(1e-6)).key("layer_norm_epsilon", json!(1e-5)).refusal(),
        "config.json: layer_norm_epsilon is 0.00001 and norm_eps is 1e-6, two spellings of one key"
    );
}
