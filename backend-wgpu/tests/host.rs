//! What the host promises: windows arrive as they were written, memory is counted, limits are refused by name.

use std::rc::Rc;
use whipsnake_core::backend::{Backend, Memory};
use whipsnake_core::conformance::Broken;
use whipsnake_core::ops::{Matmul, Store};
use whipsnake_core::step::Step;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Plane, StoredPart, StoredWeight};
use whipsnake_wgpu::{Demands, Options, Wgpu, probe};

/// A device, unless there is none and none is required.
fn open(options: &Options) -> Option<Wgpu> {
    if probe::devices().is_empty() && std::env::var_os("WHIPSNAKE_REQUIRE_ADAPTER").is_none() {
        println!("skipped: no adapter; WHIPSNAKE_REQUIRE_ADAPTER makes this a failure");
        return None;
    }
    let options = Options { device: std::env::var("WHIPSNAKE_DEVICE").ok(), ..options.clone() };
    Some(Wgpu::open(&options).expect("a device opens"))
}

fn read(gpu: &Wgpu, tensor: &Tensor<Wgpu>) -> Vec<u8> {
    pollster::block_on(gpu.read(tensor)).expect("a window reads")
}

fn stored(rows: usize, cols: usize, format: Format, data: Vec<u8>) -> StoredWeight {
    let part =
        StoredPart { name: "w.0".into(), data: Plane::from_bytes(data), scales: None, scale: 1.0 };
    StoredWeight { name: "w".into(), rows, cols, format, parts: vec![part] }
}

#[test]
fn a_window_reads_back_as_written_and_touches_nothing_else() {
    let Some(gpu) = open(&Options::default()) else { return };
    for (dtype, start) in [(DType::F32, 5), (DType::U32, 3), (DType::BF16, 6), (DType::F16, 64)] {
        let whole = gpu.tensor(7, 600, dtype, Memory::Scratch, "whole").expect("it fits");
        let size = dtype.bytes();
        gpu.write(&whole, &vec![0xab; 7 * 600 * size]).expect("a write");
        for cols in [4, 590 - start] {
            let window = whole.row_range(2, 3).columns(start, cols / 2 * 2);
            let bytes: Vec<u8> = (0..window.cols() * 3 * size).map(|i| (i * 7) as u8).collect();
            gpu.write(&window, &bytes).expect("a write");
            assert_eq!(read(&gpu, &window), bytes, "{dtype} {cols}");
        }
        let all = read(&gpu, &whole);
        let outside = (0..all.len()).filter(|i| {
            let (row, col) = (i / (600 * size), i % (600 * size) / size);
            !((2..5).contains(&row) && (start..590).contains(&col))
        });
        assert!(outside.into_iter().all(|i| all[i] == 0xab), "{dtype}");
    }
}

#[test]
fn memory_is_counted_by_class_while_it_lives() {
    let Some(gpu) = open(&Options::default()) else { return };
    let before = gpu.ledger().total();
    let state = gpu.allocate(1000, Memory::State, "state").expect("it fits");
    let copy = state.clone();
    assert_eq!((gpu.ledger().state, gpu.ledger().total() - before), (1024, 1024));
    drop(state);
    assert_eq!(gpu.ledger().state, 1024);
    drop(copy);
    assert_eq!(gpu.ledger().total(), before);
}

#[test]
fn a_buffer_past_the_limit_is_refused_by_name() {
    let defaults = Options { demands: Demands::WebGpuDefaults, ..Options::default() };
    let Some(gpu) = open(&defaults) else { return };
    let error = gpu.allocate((256 << 20) + 1, Memory::Kv, "layer 3 keys").err().expect("a refusal");
    assert_eq!(
        error.to_string(),
        "wgpu: layer 3 keys needs 268435712 bytes, the device allows 268435456 in one buffer; use a smaller model, context or batch"
    );
    assert_eq!(gpu.ledger().kv, 0);
}

#[test]
fn a_row_past_the_binding_is_refused_by_name() {
    let Some(gpu) = open(&Options { piece_bytes: Some(1024), ..Options::default() }) else {
        return;
    };
    let weight = stored(2, 512, Format::F32, vec![0; 4096]);
    let error = pollster::block_on(gpu.load(&weight)).err().expect("a refusal");
    assert_eq!(
        error.to_string(),
        "wgpu: w: one row or expert of 2048 bytes is more than the device binds (1024)"
    );
}

#[test]
fn a_plane_of_the_wrong_length_is_refused_by_name() {
    let Some(gpu) = open(&Options::default()) else { return };
    let weight = stored(2, 16, Format::Fp8, vec![0; 31]);
    let error = pollster::block_on(gpu.load(&weight)).err().expect("a refusal");
    assert_eq!(error.to_string(), "w.0: 31 bytes of elements, want 32");
}

#[test]
fn an_unknown_device_is_refused_with_the_list() {
    let Some(gpu) = open(&Options::default()) else { return };
    let options = Options { device: Some("no such card".into()), ..Options::default() };
    let error = Wgpu::open(&options).err().expect("a refusal").to_string();
    assert!(error.starts_with("wgpu: no usable device matches \"no such card\"; there are: [0] "));
    assert!(error.contains(&gpu.report().name), "{error}");
}

#[test]
fn a_vocabulary_past_the_workgroups_of_a_dimension_is_covered() {
    let options = Options::default().with_words("workgroup").unwrap();
    let Some(gpu) = open(&options) else { return };
    // Sixteen outputs a workgroup: one more workgroup than a dimension takes, and a ragged end.
    let (outputs, inputs) = (65536 * 16 + 3, 16);
    // E4M3 codes of 0.5 and 1.
    let data: Vec<u8> = (0..outputs).flat_map(|o| [[0x30, 0x38][o % 2]; 16]).collect();
    let weight = pollster::block_on(gpu.load(&stored(outputs, inputs, Format::Fp8, data)));
    let tensor = |cols, label| gpu.tensor(1, cols, DType::F32, Memory::Scratch, label);
    let (x, out) =
        (tensor(inputs, "x").expect("it fits"), tensor(outputs, "out").expect("it fits"));
    gpu.write(&x, bytemuck::cast_slice(&[1f32; 16])).expect("a write");
    let op = Matmul {
        x,
        weight: &weight.expect("it loads"),
        bias: None,
        store: Store::Replace,
        out: out.clone(),
    };
    Step::new(&gpu).run(&op).expect("it runs");
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(&read(&gpu, &out));
    let wrong = values.iter().enumerate().find(|(o, v)| **v != [8.0, 16.0][o % 2]);
    assert_eq!(wrong, None);
}

#[test]
fn a_lost_device_is_said_by_every_later_call() {
    let Some(gpu) = open(&Options::default()) else { return };
    let tensor = gpu.tensor(1, 16, DType::F32, Memory::Scratch, "x").expect("it fits");
    gpu.destroy();
    let text =
        "wgpu: the device was lost (destroyed); restart the program, or use another --device";
    for _ in 0..2 {
        let error = pollster::block_on(gpu.read(&tensor)).expect_err("a refusal");
        assert_eq!(error.to_string(), text);
    }
    let error = gpu.allocate(16, Memory::State, "state").err().expect("a refusal");
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_failed_load_leaves_nothing_on_the_device() {
    let Some(gpu) = open(&Options { piece_bytes: Some(65536), ..Options::default() }) else {
        return;
    };
    let before = gpu.ledger();
    let mut weight = stored(256, 256, Format::F32, vec![0; 4]);
    // Three of the four pieces arrive.
    weight.parts[0].data = Plane { source: Rc::new(Broken(200_000)), file: 0, range: 0..262_144 };
    let error = pollster::block_on(gpu.load(&weight)).err().expect("a refusal");
    assert_eq!(error.to_string(), "the disk broke");
    assert_eq!(gpu.ledger(), before);
}

#[test]
fn a_read_that_is_waited_for_later_gives_the_bytes_of_then() {
    let Some(gpu) = open(&Options::default()) else { return };
    let x = gpu.tensor(1, 3, DType::F32, Memory::Scratch, "x").expect("it fits");
    let values = [[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]];
    let mut coming = Vec::new();
    for values in &values {
        gpu.write(&x, bytemuck::cast_slice(values)).expect("a write");
        coming.push(gpu.read_later(&x).expect("a read"));
    }
    // What is given up disturbs no other.
    drop(coming.remove(1));
    coming.push(gpu.read_later(&x).expect("a read"));
    for (coming, want) in coming.into_iter().zip([values[0], values[2], values[2]]) {
        let bytes = pollster::block_on(coming).expect("bytes");
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), want);
    }
}
