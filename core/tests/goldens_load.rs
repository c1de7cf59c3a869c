//! Every golden checkpoint opens, is accounted for to the last tensor, and has the formats it was stored in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::weight::Format;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Matrices by format, tensors in all, tensors not run.
fn check(name: &str, formats: &[(Format, usize)], tensors: usize, unused: usize) {
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for weight in checkpoint.spec().weights() {
        let stored = pollster::block_on(checkpoint.weight(weight)).unwrap();
        *found.entry(stored.format.name()).or_default() += stored.parts.len();
        for part in &stored.parts {
            let bytes = pollster::block_on(part.data.all()).unwrap();
            assert_eq!(bytes.len(), stored.format.data_bytes(stored.rows, stored.cols));
            if let Some(scales) = &part.scales {
                let bytes = pollster::block_on(scales.all()).unwrap();
                assert_eq!(bytes.len(), stored.format.scale_bytes(stored.rows, stored.cols));
            }
        }
    }
    let want: BTreeMap<&str, usize> = formats.iter().map(|(f, n)| (f.name(), *n)).collect();
    assert_eq!(found, want, "{name}");
    for param in checkpoint.spec().params() {
        let values = pollster::block_on(checkpoint.param(param)).unwrap();
        assert_eq!(values.len(), param.rows * param.cols, "{}", param.name);
        assert!(values.iter().all(|v| v.is_finite()), "{}", param.name);
    }
    let inventory = checkpoint.inventory().unwrap();
    assert_eq!((inventory.tensors(), inventory.unused.len()), (tensors, unused), "{name}");
    for file in ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"] {
        assert!(checkpoint.file(file).is_some(), "{file}");
    }
}

#[test]
fn unquantised_checkpoints_load() {
    check("golden/nemotron-moe", &[(Format::F32, 69)], 98, 0);
    check("golden/nemotron-dense", &[(Format::F32, 26)], 61, 0);
    check("golden/nemotron-bf16", &[(Format::BF16, 50), (Format::F32, 2)], 80, 0);
}

#[test]
fn latent_experts_load_and_speculation_is_left() {
    check("golden/nemotron-latent", &[(Format::F32, 73)], 127, 32);
}

#[test]
fn quantised_checkpoints_load() {
    let formats = [(Format::Nvfp4, 42), (Format::BF16, 8), (Format::F32, 2)];
    check("golden/nemotron-nvfp4", &formats, 206, 42);
    let formats = [(Format::Fp8, 24), (Format::BF16, 8), (Format::F32, 1)];
    check("golden/nemotron-fp8", &formats, 107, 24);
}

#[test]
fn formats_may_differ_from_module_to_module() {
    let formats = [(Format::Nvfp4, 32), (Format::Fp8, 2), (Format::BF16, 14), (Format::F32, 2)];
    check("golden/nemotron-mixed", &formats, 179, 36);
}

#[test]
fn shards_load() {
    check("golden/nemotron-sharded", &[(Format::BF16, 69)], 98, 0);
    let checkpoint = Checkpoint::open(&fixture("golden/nemotron-sharded")).unwrap();
    assert_eq!(checkpoint.config()["model_type"], "nemotron_h");
}

#[test]
fn a_folder_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = Checkpoint::open(dir.path()).err().unwrap().to_string();
    let want = "config.json is missing; is this the folder of a checkpoint?";
    assert_eq!(text, format!("{}: {want}", dir.path().display()));
    let file = dir.path().join("model.safetensors");
    std::fs::write(&file, "").unwrap();
    let text = Checkpoint::open(&file).err().unwrap().to_string();
    let want = "a file, want the folder that holds config.json and the weights";
    assert_eq!(text, format!("{}: {want}", file.display()));
}
