//! Times ops alone, at the shapes of a published model, against the bytes or operations that they cannot avoid.
//!
//! Each figure is the median of several replays of one graph that runs the op many times over different operands, so
//! that neither launches nor the cache flatter it. Data is random; what a timed op wrote is read back and must be finite
//! and not zero.

mod cases;
mod data;

use crate::cuda::Cuda;
use crate::driver::checked;
use cudarc::driver::sys::CUevent_flags;
use serde::Serialize;
use whipsnake_core::backend::Backend;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::tensor::{DType, Tensor};

/// What bounds an op from below.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Floor {
    /// Bytes that must move.
    Bytes(f64),
    /// Floating-point operations that must be done.
    Operations(f64),
}

/// Bytes a microsecond and operations a microsecond that an H200 reaches on large plain kernels.
const BYTES_A_MICROSECOND: f64 = 4.3e6;
const OPERATIONS_A_MICROSECOND: f64 = 790e6;

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the op.
    pub op: &'static str,
    /// Format, rows and sizes.
    pub shape: String,
    /// Median time of one run.
    pub microseconds: f64,
    /// What the shape's bytes or operations need on an H200.
    pub floor_microseconds: f64,
    /// Gigabytes or teraflops a second.
    pub rate: f64,
    /// `GB/s` or `TFLOP/s`.
    pub unit: &'static str,
    /// The floor over the time.
    pub share: f64,
}

impl Row {
    fn new(op: &'static str, shape: String, microseconds: f64, floor: Floor) -> Self {
        let (floor_microseconds, rate, unit) = match floor {
            Floor::Bytes(bytes) => {
                (bytes / BYTES_A_MICROSECOND, bytes / microseconds / 1e3, "GB/s")
            }
            Floor::Operations(operations) => {
                (operations / OPERATIONS_A_MICROSECOND, operations / microseconds / 1e6, "TFLOP/s")
            }
        };
        let share = floor_microseconds / microseconds;
        Self { op, shape, microseconds, floor_microseconds, rate, unit, share }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { op, shape, microseconds, floor_microseconds, rate, unit, share } = self;
        write!(
            f,
            "{op:14} {shape:40} {microseconds:9.2} us  floor {floor_microseconds:8.2} us  {:5.1} %  {rate:8.0} {unit}",
            100.0 * share
        )
    }
}

/// Times every op whose name contains `filter`.
///
/// # Errors
/// The device runs out of memory, the driver refuses, or a timed op wrote zeros or what is not finite.
pub fn bench(cuda: &Cuda, filter: &str, print: &mut dyn FnMut(&Row)) -> Result<Vec<Row>> {
    let mut bench = Bench { cuda, filter, rows: Vec::new(), print };
    cases::run(&mut bench)?;
    Ok(bench.rows)
}

/// A run in progress.
pub(crate) struct Bench<'a> {
    pub cuda: &'a Cuda,
    filter: &'a str,
    rows: Vec<Row>,
    print: &'a mut dyn FnMut(&Row),
}

impl Bench<'_> {
    pub fn wants(&self, op: &str) -> bool {
        op.contains(self.filter)
    }

    /// Times `encode`, which runs its op on operand set `index`, and checks what it wrote to `out`.
    pub fn row(
        &mut self,
        op: &'static str,
        shape: String,
        floor: Floor,
        out: &Tensor<Cuda>,
        encode: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let microseconds =
            self.cuda.time(encode).map_err(|error| error.within(format!("{op} {shape}")))?;
        check(self.cuda, out).map_err(|error| error.within(format!("{op} {shape}")))?;
        let row = Row::new(op, shape, microseconds, floor);
        (self.print)(&row);
        self.rows.push(row);
        Ok(())
    }
}

/// Reads some rows of a timed output.
fn check(cuda: &Cuda, out: &Tensor<Cuda>) -> Result<()> {
    let bytes = data::block_on(cuda.read(&out.first_rows(out.rows().min(4))))?;
    let values: Vec<f32> = match out.dtype() {
        DType::BF16 => bytes
            .chunks(2)
            .map(|b| f32::from_bits(u32::from(b[1]) << 24 | u32::from(b[0]) << 16))
            .collect(),
        DType::F32 => bytemuck::pod_collect_to_vec(&bytes),
        _ => return Ok(()),
    };
    let sum: f32 = values.iter().map(|v| v.abs()).sum();
    if sum.is_finite() && sum > 0.0 {
        return Ok(());
    }
    Err(Error::device(format!("the timed output sums to {sum}, want finite and not zero")))
}

/// Most runs in one graph.
const RUNS: usize = 20;

impl Cuda {
    /// Microseconds of one run: the median of several replays of a graph of many.
    fn time(&self, encode: &mut dyn FnMut(usize) -> Result<()>) -> Result<f64> {
        encode(0)?;
        let first = self.replayed(1, encode)?;
        // About a millisecond a replay, and at least three runs.
        let runs = ((1000.0 / first.max(1.0)) as usize).clamp(3, RUNS);
        self.replayed(runs, encode)
    }

    fn replayed(&self, runs: usize, encode: &mut dyn FnMut(usize) -> Result<()>) -> Result<f64> {
        let graph = self.capture(&mut || (0..runs).try_for_each(&mut *encode))?;
        let graph = graph.ok_or_else(|| Error::device("nothing was captured"))?;
        let stream = self.driver().stream();
        checked("launching a graph", graph.launch())?;
        let mut times = Vec::new();
        for _ in 0..7 {
            let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
            let before = checked("recording an event", stream.record_event(flags))?;
            checked("launching a graph", graph.launch())?;
            let after = checked("recording an event", stream.record_event(flags))?;
            checked("waiting for an event", after.synchronize())?;
            let milliseconds = checked("reading an event", before.elapsed_ms(&after))?;
            times.push(f64::from(milliseconds) * 1e3 / runs as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}
