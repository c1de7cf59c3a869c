//! Values that come out of a checkpoint, through the CPU back end.

use super::*;
use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::model::spec::MixerSpec;
use crate::weight::{Format, LocalFuture};
use pollster::block_on;
use safetensors::tensor::TensorView;
use std::ops::Range;

fn config() -> Value {
    serde_json::json!({
        "model_type": "nemotron_h", "torch_dtype": "bfloat16", "vocab_size": 4, "hidden_size": 32,
        "hybrid_override_pattern": "*", "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2
    })
}

type Tensor = (Dtype, Vec<usize>, Vec<u8>);

/// The small model's tensors, with `q_proj` stored as given.
fn tensors(q: &[(&str, Dtype, &[usize], &[u8])]) -> BTreeMap<String, Tensor> {
    let geometry = Geometry::from_config(config().to_string().as_bytes()).unwrap();
    let index = geometry.index().unwrap().into_iter().map(|e| {
        let bytes = vec![0; usize::try_from(e.bytes()).unwrap()];
        (e.name, (e.dtype, e.shape, bytes))
    });
    let mut tensors: BTreeMap<String, Tensor> = index.collect();
    for (suffix, dtype, shape, bytes) in q {
        let name = format!("backbone.layers.0.mixer.q_proj.{suffix}");
        tensors.insert(name, (*dtype, shape.to_vec(), bytes.to_vec()));
    }
    tensors
}

fn file(tensors: &BTreeMap<String, Tensor>) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

fn open(file: Vec<u8>) -> Checkpoint {
    let files = vec![
        ("config.json".to_owned(), config().to_string().into()),
        ("model.safetensors".to_owned(), file.into()),
    ];
    Checkpoint::from_memory(files).unwrap()
}

/// Both rows of `q_proj`, dequantised by the CPU back end.
fn q_rows(checkpoint: &Checkpoint) -> (Format, Vec<f32>) {
    let weights = checkpoint.spec().weights();
    let q = weights.iter().find(|w| w.names[0].ends_with("q_proj.weight")).unwrap();
    let weight = block_on(Cpu::new().load(&block_on(checkpoint.weight(q)).unwrap())).unwrap();
    (weight.format, [weight.row(0, 0), weight.row(0, 1)].concat())
}

#[test]
fn nvfp4_values_are_code_times_block_scale_times_matrix_scale() {
    // Codes 0 to 15 in each block of row 0, low nibble first; row 1 is all ones.
    let counting = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe];
    let codes = [counting, counting, [0x22; 8], [0x22; 8]].concat();
    let checkpoint = open(file(&tensors(&[
        ("weight", Dtype::U8, &[2, 16], &codes),
        // 1, 2, 0.5, 448
        ("weight_scale", Dtype::F8_E4M3, &[2, 2], &[0x38, 0x40, 0x30, 0x7e]),
        ("weight_scale_2", Dtype::F32, &[], &0.25f32.to_le_bytes()),
        ("input_scale", Dtype::F32, &[], &1f32.to_le_bytes()),
    ])));
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let block: Vec<f32> = magnitudes.iter().copied().chain(magnitudes.map(|v| -v)).collect();
    let scaled = |scale: f32| block.iter().map(move |v| v * scale * 0.25);
    let want: Vec<f32> =
        scaled(1.0).chain(scaled(2.0)).chain([0.125; 16]).chain([112.0; 16]).collect();
    assert_eq!(q_rows(&checkpoint), (Format::Nvfp4, want));
}

#[test]
fn fp8_values_are_element_times_matrix_scale() {
    let mut bytes = [0x38u8; 64];
    bytes[..4].copy_from_slice(&[0x7e, 0xb8, 0x01, 0x00]);
    let checkpoint = open(file(&tensors(&[
        ("weight", Dtype::F8_E4M3, &[2, 32], &bytes),
        ("weight_scale", Dtype::F32, &[1], &0.5f32.to_le_bytes()),
    ])));
    let mut want = vec![0.5; 64];
    want[..4].copy_from_slice(&[224.0, -0.5, 2f32.powi(-10), 0.0]);
    assert_eq!(q_rows(&checkpoint), (Format::Fp8, want));
}

/// Every other byte of the element plane sits at an odd address when the header's length is odd: legal, so it loads.
#[test]
fn data_at_odd_addresses_loads() {
    let bytes: Vec<u8> =
        (0..64u8).flat_map(|i| half::bf16::from_f32(f32::from(i)).to_le_bytes()).collect();
    let aligned = file(&tensors(&[("weight", Dtype::BF16, &[2, 32], &bytes)]));
    let length = u64::from_le_bytes(*aligned.first_chunk().unwrap()) + 1;
    let end = usize::try_from(length).unwrap() + 7;
    let odd = [&length.to_le_bytes()[..], &aligned[8..end], b" ", &aligned[end..]].concat();
    let want: Vec<f32> = (0..64u8).map(f32::from).collect();
    assert_eq!(q_rows(&open(odd)), (Format::BF16, want));
}

/// A source that only answers ranges, as one over HTTP does.
struct Ranged(Vec<u8>);

impl Source for Ranged {
    fn read(&self, file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        assert_eq!(file, 0);
        let part = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        Box::pin(async move { Ok(Bytes::copy_from_slice(&self.0[part])) })
    }
}

#[test]
fn a_checkpoint_opens_from_ranges_alone() {
    let file = file(&tensors(&[]));
    let bytes = u64::try_from(file.len()).unwrap();
    let needed = usize::try_from(Header::bytes_needed(&file[..8], bytes).unwrap()).unwrap();
    let header = Header::parse(&file[..needed], bytes).unwrap();
    let metadata = vec![("config.json".to_owned(), config().to_string().into())];
    let files = vec![("model.safetensors".to_owned(), header)];
    let opened = Checkpoint::from_source(metadata, files, Rc::new(Ranged(file))).unwrap();
    assert_eq!(q_rows(&opened), (Format::BF16, vec![0.0; 64]));
}

#[test]
fn parameters_are_widened_to_f32() {
    let mut tensors = tensors(&[]);
    let halves: Vec<u8> =
        (0..32u8).flat_map(|i| half::f16::from_f32(f32::from(i) / 2.0).to_le_bytes()).collect();
    tensors.insert("backbone.norm_f.weight".into(), (Dtype::F16, vec![32], halves));
    let checkpoint = open(file(&tensors));
    let values = block_on(checkpoint.param(&checkpoint.spec().final_norm.weight)).unwrap();
    assert_eq!(values, (0..32u8).map(|i| f32::from(i) / 2.0).collect::<Vec<_>>());
}

/// Mean and standard deviation of the stored values of the first tensor whose name ends so, times `sqrt(columns)`.
fn spread(checkpoint: &Checkpoint, end: &str) -> (f32, f32) {
    let weights = checkpoint.spec().weights();
    let weight = weights.iter().find(|w| w.names[0].ends_with(end)).unwrap();
    let one = WeightRef { names: vec![weight.names[0].clone()], ..(*weight).clone() };
    let loaded = block_on(Cpu::new().load(&block_on(checkpoint.weight(&one)).unwrap())).unwrap();
    let values: Vec<f32> = (0..16).flat_map(|row| loaded.row(0, row)).collect();
    let count = values.len() as f32;
    let mean = values.iter().sum::<f32>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / count;
    let root = (weight.cols as f32).sqrt();
    (mean * root, variance.sqrt() * root)
}

#[test]
fn generated_matrices_have_the_spread_of_trained_ones() {
    for (name, end) in [
        ("nemotron-3-nano-nvfp4", "layers.0.mixer.in_proj.weight"),
        ("nemotron-3-nano-nvfp4", "layers.1.mixer.experts.0.up_proj.weight"),
        ("nemotron-3-nano-nvfp4", "layers.1.mixer.gate.weight"),
        ("nemotron-3-nano-fp8", "layers.0.mixer.in_proj.weight"),
        ("nemotron-3-nano-bf16", "layers.0.mixer.out_proj.weight"),
    ] {
        let checkpoint = Checkpoint::synthetic(&Geometry::named(name).unwrap(), 7).unwrap();
        let (mean, deviation) = spread(&checkpoint, end);
        assert!(
            mean.abs() < 0.05 && (deviation - 1.0).abs() < 0.05,
            "{name} {end}: {mean} {deviation}"
        );
    }
}

#[test]
fn generated_bytes_depend_on_name_and_seed_alone() {
    let geometry = Geometry::named("granite-350m-like").unwrap();
    let bytes = |seed, layer: usize, part: Range<u64>| {
        let checkpoint = Checkpoint::synthetic(&geometry, seed).unwrap();
        let MixerSpec::Mamba2(mixer) = &checkpoint.spec().blocks[layer].mixers[0] else { panic!() };
        let stored = block_on(checkpoint.weight(&mixer.in_proj.weight)).unwrap();
        block_on(stored.parts[0].data.part(part)).unwrap()
    };
    let whole = bytes(1, 0, 0..20_000);
    assert_eq!(whole[4095..12_345], bytes(1, 0, 4095..12_345));
    assert_ne!(whole, bytes(2, 0, 0..20_000));
    assert_ne!(whole, bytes(1, 2, 0..20_000));
}

#[test]
fn generated_parameters_are_in_range() {
    let checkpoint =
        Checkpoint::synthetic(&Geometry::named("granite-350m-like").unwrap(), 3).unwrap();
    let MixerSpec::Mamba2(mixer) = &checkpoint.spec().blocks[0].mixers[0] else { panic!() };
    let within = |param: &ParamRef, low: f32, high: f32| {
        let values = block_on(checkpoint.param(param)).unwrap();
        assert!(values.iter().all(|v| (low..=high).contains(v)), "{}: {values:?}", param.name);
    };
    within(&mixer.a_log, 0.0, 16f32.ln() + 0.02);
    within(&mixer.dt_bias, -7.0, -2.2);
    within(&mixer.norm.weight, 0.5, 1.5);
    within(&mixer.d, 0.5, 1.5);
}
