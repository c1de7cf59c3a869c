//! Times ops alone, at the shapes of a published model, against the bytes or operations that they cannot avoid.
//!
//! Each figure is the median of several timings of many runs over different operands, so that neither launches nor the
//! cache flatter it. Data is random; what a timed op wrote is read back and must be finite and not zero.

mod cases;
mod data;
mod experts;
mod fused;
mod peers;

use crate::backend::Backend;
use crate::cpu::widen;
use crate::error::{Error, Result};
use crate::ops::Activation;
use crate::tensor::{DType, Tensor};
use peers::Peer;
use serde::Serialize;

/// A back end that times its ops by the device's own clock.
pub trait Timed: Backend {
    /// Microseconds that the device needs for what `encode` encodes, warm.
    ///
    /// # Errors
    /// Those of `encode`, or the driver's.
    fn time(&self, encode: &mut dyn FnMut() -> Result<()>) -> Result<f64>;
}

/// What bounds an op from below.
#[derive(Clone, Copy, Debug)]
enum Floor {
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
    /// Another runtime's time for the same work on the same device, and what is aimed at.
    pub peer: Option<Peer>,
}

impl Row {
    fn new(
        op: &'static str,
        shape: String,
        microseconds: f64,
        floor: Floor,
        peer: Option<Peer>,
    ) -> Self {
        let (floor_microseconds, rate, unit) = match floor {
            Floor::Bytes(bytes) => {
                (bytes / BYTES_A_MICROSECOND, bytes / microseconds / 1e3, "GB/s")
            }
            Floor::Operations(operations) => {
                (operations / OPERATIONS_A_MICROSECOND, operations / microseconds / 1e6, "TFLOP/s")
            }
        };
        let share = floor_microseconds / microseconds;
        Self { op, shape, microseconds, floor_microseconds, rate, unit, share, peer }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { op, shape, microseconds, floor_microseconds, rate, unit, share, peer } = self;
        write!(
            f,
            "{op:17} {shape:40} {microseconds:9.2} us  floor {floor_microseconds:8.2} us  {:5.1} %  {rate:8.0} {unit}",
            100.0 * share
        )?;
        match peer {
            Some(peer) => write!(f, "  {peer}"),
            None => Ok(()),
        }
    }
}

/// Times every op whose name contains `filter`.
///
/// # Errors
/// The device runs out of memory, the driver refuses, or a timed op wrote zeros or what is not finite.
pub async fn bench<B: Timed>(
    device: &B,
    filter: &str,
    print: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>> {
    let mut bench = Bench { device, filter, rows: Vec::new(), print };
    cases::run(&mut bench).await?;
    Ok(bench.rows)
}

/// A run in progress.
struct Bench<'a, B> {
    device: &'a B,
    filter: &'a str,
    rows: Vec<Row>,
    print: &'a mut dyn FnMut(&Row),
}

/// Most runs in one timing.
const RUNS: usize = 20;
/// Timings behind a median.
const TIMINGS: usize = 7;

impl<B: Timed> Bench<'_, B> {
    fn wants(&self, op: &str) -> bool {
        op.contains(self.filter)
    }

    /// Times `encode`, which runs its op on operand set `index`, and checks what it wrote to `out`.
    async fn row(
        &mut self,
        op: &'static str,
        shape: String,
        floor: Floor,
        out: &Tensor<B>,
        encode: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let within = |error: Error| error.within(format!("{op} {shape}"));
        let microseconds = self.median(encode).map_err(within)?;
        check(self.device, out).await.map_err(within)?;
        let peer = peers::find(self.device.name(), op, &shape);
        let row = Row::new(op, shape, microseconds, floor, peer);
        (self.print)(&row);
        self.rows.push(row);
        Ok(())
    }

    /// Microseconds of one run.
    fn median(&self, encode: &mut dyn FnMut(usize) -> Result<()>) -> Result<f64> {
        let mut timed =
            |runs: usize| self.device.time(&mut || (0..runs).try_for_each(&mut *encode));
        timed(1)?;
        // About a millisecond, and at least three runs.
        let runs = ((1000.0 / timed(1)?.max(1.0)) as usize).clamp(3, RUNS);
        let mut times =
            (0..TIMINGS).map(|_| Ok(timed(runs)? / runs as f64)).collect::<Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[TIMINGS / 2])
    }
}

/// Reads rows of a timed output: first, middle and last.
async fn check<B: Backend>(device: &B, out: &Tensor<B>) -> Result<()> {
    for row in [0, out.rows() / 2, out.rows() - 1] {
        let bytes = device.read(&out.row_range(row, 1)).await?;
        if out.dtype() == DType::U32 {
            // Indices and ids are small; what nobody wrote is not.
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
            if let Some(word) = words.iter().find(|word| **word >= 1 << 24) {
                return Err(Error::device(format!("row {row} of the timed output holds {word}")));
            }
            continue;
        }
        let sum: f32 = widen(&bytes, out.dtype()).iter().map(|v| v.abs()).sum();
        if !sum.is_finite() || sum == 0.0 {
            let text = "want finite and not zero";
            return Err(Error::device(format!(
                "row {row} of the timed output sums to {sum}, {text}"
            )));
        }
    }
    Ok(())
}

/// What a timed product should have written.
struct Wanted<X, W> {
    /// The row of x that a row of the output comes from.
    x: X,
    /// The weight's row for an output.
    weight: W,
    /// What the sums go through.
    activation: Activation,
    /// What [`Backend::rounding`] says.
    rounding: f32,
}

impl<X, W> Wanted<X, W> {
    /// Holds corners and middle of the output to sums of the host.
    async fn check<B: Backend>(&self, device: &B, out: &Tensor<B>) -> Result<()>
    where
        X: Fn(usize) -> Tensor<B>,
        W: Fn(usize) -> Vec<f32>,
    {
        let [rows, cols] = out.shape();
        let (last_row, last_col) = (rows - 1, cols - 1);
        let places =
            [(0, 0), (0, last_col), (rows / 2, cols / 2), (last_row, 0), (last_row, last_col)];
        for (row, col) in places {
            let x = (self.x)(row);
            let x = widen(&device.read(&x).await?, x.dtype());
            let found = widen(&device.read(&out.row_range(row, 1)).await?, out.dtype())[col];
            let terms: Vec<f64> = (self.weight)(col)
                .iter()
                .zip(&x)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .collect();
            let size = terms.iter().map(|term| term * term).sum::<f64>().sqrt();
            // f32 sums in another order, and operands that were rounded on request.
            let off = size * (2e-3 + 5.0 * f64::from(self.rounding));
            let sum = terms.iter().sum::<f64>();
            let [low, high] = [sum - off, sum + off].map(|sum| self.activation.apply(sum as f32));
            // A rounding of the output.
            let step = low.abs().max(high.abs()) / 128.0;
            if !(low - step..=high + step).contains(&found) {
                let want = format!("{} to {}", low - step, high + step);
                let text = format!("[{row}, {col}] of the timed output is {found}, want {want}");
                return Err(Error::device(text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Memory;
    use crate::cpu::{Cpu, narrow};
    use crate::ops::{Matmul, Store};
    use crate::weight::Format;

    #[test]
    fn a_product_that_is_off_is_found() {
        let cpu = Cpu::reference();
        let mut data = data::Data::new(&cpu);
        let (rows, outputs, inputs) = (5, 40, 64);
        for format in [Format::Nvfp4, Format::BF16] {
            let weight =
                pollster::block_on(data.weight(1, outputs, inputs, format)).expect("a weight");
            let x = data.activation(rows, inputs).expect("room");
            let out = cpu.tensor(rows, outputs, DType::F32, Memory::Scratch, "out").expect("room");
            let (store, target) = (Store::Replace, out.clone());
            let op = Matmul { x: x.clone(), weight: &weight, bias: None, store, out: target };
            cpu.matmul(&op).expect("a product");
            let wanted = Wanted {
                x: |row| x.row_range(row, 1),
                weight: |output| data.weight_row(format, inputs, output),
                activation: Activation::Identity,
                rounding: 0.0,
            };
            let fault = || pollster::block_on(wanted.check(&cpu, &out)).err();
            assert!(fault().is_none(), "{:?}", fault());
            let right = pollster::block_on(cpu.read(&out)).expect("a read");
            let mut values = widen(&right, DType::F32);
            values[rows * outputs - 1] *= 1.05;
            values[rows * outputs - 1] += 0.5;
            cpu.write(&out, &narrow(&values, DType::F32)).expect("a write");
            let text = fault().expect("a fault").to_string();
            assert!(text.starts_with("[4, 39] of the timed output is "), "{text}");
        }
    }
}
