//! What the host promises, on the device, where there is one: nothing stays behind, what does not fit is named.

use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use whipsnake_core::backend::{Backend, Memory, StepKey};
use whipsnake_core::conformance::Broken;
use whipsnake_core::ops::Scale;
use whipsnake_core::step::Step;
use whipsnake_core::tensor::DType;
use whipsnake_core::weight::{Format, Plane, StoredPart, StoredWeight};
use whipsnake_cuda::{Cuda, Options, devices};

/// Tests that look at the device's free memory run beside no other.
static ALONE: Mutex<()> = Mutex::new(());

fn open() -> Option<(MutexGuard<'static, ()>, Cuda)> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(reason) = &devices()[0].refused {
        println!("skipped: {reason}");
        return None;
    }
    let cuda = Cuda::with_options(0, Options::F32).unwrap_or_else(|error| panic!("{error}"));
    Some((alone, cuda))
}

#[test]
fn a_failed_load_frees_the_device() {
    let Some((_alone, cuda)) = open() else { return };
    let (rows, cols) = (16 << 10, 32 << 10);
    let bytes = (rows * cols) as u64;
    // Two experts of 512 MiB; the second breaks off half way.
    let part = |index: u64| StoredPart {
        name: format!("w.{index}"),
        data: Plane {
            source: Rc::new(Broken(bytes + bytes / 2)),
            file: 0,
            range: index * bytes..(index + 1) * bytes,
        },
        scales: None,
        scale: 1.0,
    };
    let weight = StoredWeight {
        name: "w".into(),
        rows,
        cols,
        format: Format::Fp8,
        parts: vec![part(0), part(1)],
    };
    let (held, before) = (cuda.ledger(), devices()[0].free);
    let error = pollster::block_on(cuda.load(&weight)).err().expect("a refusal");
    assert_eq!(error.to_string(), "the disk broke");
    assert_eq!(cuda.ledger(), held);
    // Memory goes back in stream order: a read waits for the stream.
    let word = cuda.tensor(1, 1, DType::U32, Memory::Scratch, "word").expect("it fits");
    pollster::block_on(cuda.read(&word)).expect("a read");
    let lost = before.saturating_sub(devices()[0].free);
    assert!(lost < 64 << 20, "{lost} bytes stay behind");
}

#[test]
fn what_does_not_fit_is_named_with_what_is_missing() {
    let Some((_alone, cuda)) = open() else { return };
    let want = devices()[0].memory as usize + (1 << 30);
    let error = cuda.allocate(want, Memory::Kv, "layer 3 keys").err().expect("a refusal");
    let text = error.to_string();
    let number = |before: &str, after: &str| -> usize {
        let rest = text.split_once(before).expect(before).1;
        rest.split_once(after).expect(after).0.parse().expect("a number")
    };
    assert!(text.starts_with("cuda: out of device memory: layer 3 keys needs "), "{text}");
    let (needs, free) = (number("needs ", " bytes"), number("bytes, ", " are free"));
    assert_eq!(needs, want.next_multiple_of(256));
    assert_eq!(number("free, ", " too few"), needs - free);
    assert_eq!(cuda.ledger().kv, 0);
}

#[test]
fn a_window_wider_than_the_staging_memory_reads_back_as_written() {
    let Some((_alone, cuda)) = open() else { return };
    let whole = cuda.tensor(3, 5 << 20, DType::F32, Memory::Scratch, "whole").expect("it fits");
    let window = whole.columns(4, (5 << 20) - 12);
    let bytes: Vec<u8> = (0..3 * window.cols() * 4).map(|i| (i / 3 * 7) as u8).collect();
    cuda.write(&window, &bytes).expect("a write");
    assert!(pollster::block_on(cuda.read(&window)).expect("a read") == bytes);
}

#[test]
fn steps_of_ever_new_shapes_run_and_are_forgotten() {
    let Some((_alone, cuda)) = open() else { return };
    let x = cuda.tensor(1, 1, DType::F32, Memory::Scratch, "x").expect("it fits");
    let (before, mut want) = (devices()[0].free, 1.0f32);
    cuda.write(&x, bytemuck::bytes_of(&want)).expect("a write");
    for key in 0..3000 {
        // Eager, captured, replayed.
        for _ in 0..3 {
            let factor = if key % 2 == 0 { 0.5 } else { 2.0 };
            let op = Scale { x: x.clone(), factor };
            cuda.run_step(StepKey(key), &mut || Step::new(&cuda).run(&op)).expect("a step");
            want *= factor;
        }
    }
    let bytes = pollster::block_on(cuda.read(&x)).expect("a read");
    assert_eq!(bytemuck::pod_read_unaligned::<f32>(&bytes), want);
    let lost = before.saturating_sub(devices()[0].free);
    assert!(lost < 256 << 20, "{lost} bytes stay behind");
}

#[test]
fn a_read_that_is_waited_for_later_gives_the_bytes_of_then() {
    let Some((_alone, cuda)) = open() else { return };
    let x = cuda.tensor(1, 3, DType::F32, Memory::Scratch, "x").expect("it fits");
    let values = [[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]];
    let mut coming = Vec::new();
    for values in &values {
        cuda.write(&x, bytemuck::cast_slice(values)).expect("a write");
        coming.push(cuda.read_later(&x).expect("a read"));
    }
    // What is given up disturbs no other.
    drop(coming.remove(1));
    coming.push(cuda.read_later(&x).expect("a read"));
    for (coming, want) in coming.into_iter().zip([values[0], values[2], values[2]]) {
        let bytes = pollster::block_on(coming).expect("bytes");
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), want);
    }
}
