//! Times ops alone, at the shapes of Nemotron 3 Nano, by time stamps around many runs in one submit.
//!
//! Operands rotate, so that the cache does not flatter; data is random; what a timed op wrote must be finite and not zero.

mod cases;
mod data;

use crate::Wgpu;
use serde::Serialize;
use whipsnake_core::backend::Backend;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::tensor::{DType, Tensor};

/// What an op cannot avoid, and what an H200 needs for it at least.
#[derive(Clone, Copy, Debug)]
enum Floor {
    /// Bytes that must move, at 4.3 TB/s.
    Bytes(f64),
    /// Floating-point operations that must be done, at 790 TFLOP/s.
    Operations(f64),
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the op.
    pub op: &'static str,
    /// Format, rows and sizes.
    pub shape: String,
    /// Median time of one run.
    pub microseconds: f64,
    /// Gigabytes or teraflops a second.
    pub rate: f64,
    /// `GB/s` or `TFLOP/s`.
    pub unit: &'static str,
    /// The floor over the time.
    pub share: f64,
}

impl Row {
    fn new(op: &'static str, shape: String, microseconds: f64, floor: Floor) -> Self {
        let (least, rate, unit) = match floor {
            Floor::Bytes(bytes) => (bytes / 4.3e6, bytes / microseconds / 1e3, "GB/s"),
            Floor::Operations(count) => (count / 790e6, count / microseconds / 1e6, "TFLOP/s"),
        };
        Self { op, shape, microseconds, rate, unit, share: least / microseconds }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { op, shape, microseconds, rate, unit, share } = self;
        write!(
            f,
            "{op:14} {shape:34} {microseconds:10.2} us {:5.1} % {rate:8.1} {unit}",
            100.0 * share
        )
    }
}

/// Times every op whose name contains `filter`, on a device opened with [`Timed::Calls`](crate::Timed).
///
/// # Errors
/// The device runs out of memory, the driver refuses, or a timed op wrote zeros or what is not finite.
pub fn bench(gpu: &Wgpu, filter: &str, print: &mut dyn FnMut(&Row)) -> Result<Vec<Row>> {
    let mut bench = Bench { gpu, filter, rows: Vec::new(), print };
    cases::run(&mut bench)?;
    Ok(bench.rows)
}

/// A run in progress.
struct Bench<'a> {
    gpu: &'a Wgpu,
    filter: &'a str,
    rows: Vec<Row>,
    print: &'a mut dyn FnMut(&Row),
}

/// Most runs in one submit.
const RUNS: usize = 20;

impl Bench<'_> {
    fn wants(&self, op: &str) -> bool {
        op.contains(self.filter)
    }

    /// Times `encode`, which runs its op on operand set `index`, and checks what it wrote to `out`.
    fn row(
        &mut self,
        op: &'static str,
        shape: String,
        floor: Floor,
        out: &Tensor<Wgpu>,
        encode: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let gpu = self.gpu;
        let mut timed = |runs: usize| gpu.time(&mut || (0..runs).try_for_each(&mut *encode));
        timed(1)?;
        // About a millisecond, and at least three runs.
        let runs = ((1000.0 / timed(1)?.max(1.0)) as usize).clamp(3, RUNS);
        let mut times = (0..5)
            .map(|_| Ok(timed(runs)? / runs as f64))
            .collect::<Result<Vec<f64>>>()
            .map_err(|error| error.within(format!("{op} {shape}")))?;
        times.sort_by(f64::total_cmp);
        check(gpu, out).map_err(|error| error.within(format!("{op} {shape}")))?;
        let row = Row::new(op, shape, times[times.len() / 2], floor);
        (self.print)(&row);
        self.rows.push(row);
        Ok(())
    }
}

/// Reads some rows of a timed output.
fn check(gpu: &Wgpu, out: &Tensor<Wgpu>) -> Result<()> {
    if out.dtype() != DType::F32 {
        return Ok(());
    }
    let bytes = pollster::block_on(gpu.read(&out.first_rows(out.rows().min(4))))?;
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
    let sum: f32 = values.iter().map(|v| v.abs()).sum();
    if sum.is_finite() && sum > 0.0 {
        return Ok(());
    }
    Err(Error::device(format!("the timed output sums to {sum}, want finite and not zero")))
}
