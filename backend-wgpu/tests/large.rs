//! A weight of more than 2^31 elements in one buffer, on devices that bind it.

use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;
use whipsnake_core::backend::{Backend, Memory};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{Embed, Matmul, Store};
use whipsnake_core::step::Step;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, LocalFuture, Plane, Source, StoredPart, StoredWeight};
use whipsnake_wgpu::{Options, Wgpu, probe};

const COLS: usize = 2048;
/// Just past 2^31 elements.
const ROWS: usize = (1 << 20) + 37;

/// Magnitudes of E2M1 codes.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn code(row: usize) -> usize {
    row * 5 % 8
}

/// Rows of NVFP4, all elements of a row alike, made when they are asked for.
struct Codes;

impl Source for Codes {
    fn read(&self, _file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        // Two codes a byte.
        let row = |at: u64| usize::try_from(at).unwrap() / (COLS / 2);
        let bytes: Vec<u8> = range.map(|at| (code(row(at)) * 0x11) as u8).collect();
        Box::pin(std::future::ready(Ok(bytes.into())))
    }
}

/// Block scales of 1.
struct Ones;

impl Source for Ones {
    fn read(&self, _file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        let count = usize::try_from(range.end - range.start).unwrap();
        Box::pin(std::future::ready(Ok(vec![0x38; count].into())))
    }
}

/// A device that binds the weight as one buffer; software would take minutes.
fn gpu() -> Option<Wgpu> {
    let wanted = std::env::var("WHIPSNAKE_DEVICE").ok();
    let able = probe::devices()
        .iter()
        .any(|d| d.kind != "software" && d.limits.binding_bytes > (ROWS * COLS / 2) as u64);
    if !able {
        println!("skipped: no device binds {} bytes", ROWS * COLS / 2);
        return None;
    }
    Some(Wgpu::open(&Options { device: wanted, ..Options::default() }).expect("a device opens"))
}

fn values(gpu: &Wgpu, tensor: &Tensor<Wgpu>) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(&pollster::block_on(gpu.read(tensor)).expect("it reads"))
}

#[test]
fn a_weight_past_two_to_the_31_elements_is_read_to_its_end() {
    let Some(gpu) = gpu() else { return };
    let bytes = (ROWS * COLS / 2) as u64;
    let plane = |source, len| Plane { source, file: 0, range: 0..len };
    let part = StoredPart {
        name: "w.0".into(),
        data: plane(Rc::new(Codes), bytes),
        scales: Some(plane(Rc::new(Ones), bytes / 8)),
        scale: 1.0,
    };
    let (name, format) = ("w".into(), Format::Nvfp4);
    let stored = StoredWeight { name, rows: ROWS, cols: COLS, format, parts: vec![part] };
    let weight = pollster::block_on(gpu.load(&stored)).expect("it loads");
    let tensor =
        |rows, cols| gpu.tensor(rows, cols, DType::F32, Memory::Scratch, "rows").expect("it fits");
    let step = Step::new(&gpu);

    let (x, out) = (tensor(1, COLS), tensor(1, ROWS));
    gpu.write(&x, bytemuck::cast_slice(&[1f32; COLS])).expect("a write");
    let (store, bias) = (Store::Replace, None);
    step.run(&Matmul { x, weight: &weight, bias, store, out: out.clone() }).expect("it runs");
    let products = values(&gpu, &out);
    let wrong = (0..ROWS).find(|&r| products[r] != COLS as f32 * MAGNITUDES[code(r)]);
    assert_eq!(wrong, None);

    let chosen = [0, 1 << 20, ROWS - 1];
    let tokens = gpu.tensor(3, 1, DType::U32, Memory::Scratch, "tokens").expect("it fits");
    gpu.write(&tokens, bytemuck::cast_slice(&chosen.map(|r| r as u32))).expect("a write");
    let out = tensor(3, COLS);
    step.run(&Embed { tokens, table: &weight, scale: 1.0, out: out.clone() }).expect("it runs");
    let rows = values(&gpu, &out);
    for (i, row) in chosen.into_iter().enumerate() {
        let want = MAGNITUDES[code(row)];
        assert!(rows[i * COLS..][..COLS].iter().all(|&v| v == want), "row {row}");
    }
}
