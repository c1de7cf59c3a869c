//! Where a case builds its operands: inputs from seeds, outputs prefilled with NaN and ringed with canaries.

use super::fill::{Fill, Stream};
use crate::backend::{Backend, Memory};
use crate::batch::{Batch, BatchLimits, BatchShape, Segment, Segments};
use crate::cpu::{narrow, widen};
use crate::error::Result;
use crate::quant::{to_fp8, to_nvfp4};
use crate::step::Step;
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, Plane, StoredPart, StoredWeight, Weight};
use half::{bf16, f16};
use std::cell::RefCell;
use std::future::Future;

/// How far an output may lie from the reference: `|a - b| <= absolute + relative * |b|`.
///
/// Narrow outputs are also allowed one rounding step of their dtype.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Absolute part.
    pub absolute: f32,
    /// Part that grows with the reference's value.
    pub relative: f32,
}

impl Tolerance {
    /// Bit for bit: copies, ids, tables.
    pub const EXACT: Self = Self { absolute: 0.0, relative: 0.0 };
    /// f32 arithmetic in another order: a few hundred units in the last place.
    pub const F32: Self = Self { absolute: 2e-5, relative: 2e-5 };
}

/// An output or state to compare once the case has run.
pub(super) struct Watched<B: Backend> {
    pub name: String,
    /// The whole allocation, ring included. `[rows + 2, stride]`
    pub whole: Tensor<B>,
    /// Columns before the window.
    pub before: usize,
    /// The window. `[rows, cols]`
    pub window: Tensor<B>,
    pub tolerance: Tolerance,
}

/// Columns in the ring on each side of a window: windows stay at multiples of 256 bytes for every dtype.
const RING: usize = 256;

/// Fills rings; a value no op computes.
const CANARY: f32 = -12288.0;
const CANARY_U32: u32 = 0xdead_beef;

/// Builds operands for one case on one back end.
pub struct Rig<'a, B: Backend> {
    backend: &'a B,
    case: String,
    activations: DType,
    pub(super) watched: RefCell<Vec<Watched<B>>>,
}

impl<'a, B: Backend> Rig<'a, B> {
    pub(super) fn new(backend: &'a B, case: &str, activations: DType) -> Self {
        Self { backend, case: case.to_string(), activations, watched: RefCell::default() }
    }

    /// The step to run the op through.
    pub fn step(&self) -> Step<'a, B> {
        Step::new(self.backend)
    }

    /// The back end under test.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    /// Stored form of activations in this run.
    pub fn activations(&self) -> DType {
        self.activations
    }

    /// A stream of numbers for an operand.
    pub fn stream(&self, operand: &str) -> Stream {
        Stream::new(&self.case, operand)
    }

    /// An activation input inside a wider buffer, as the model's windows are. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn activation(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        fill: Fill,
    ) -> Result<Tensor<B>> {
        let values = self.stream(name).values(fill, rows * cols);
        self.windowed(name, rows, cols, self.activations, &values).map(|(_, window)| window)
    }

    /// An f32 parameter, dense. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn param(&self, name: &str, rows: usize, cols: usize, fill: Fill) -> Result<Tensor<B>> {
        self.param_of(name, rows, cols, &self.stream(name).values(fill, rows * cols))
    }

    /// An f32 parameter of given values, dense. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn param_of(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        values: &[f32],
    ) -> Result<Tensor<B>> {
        let tensor = self.backend.tensor(rows, cols, DType::F32, Memory::Weights, name)?;
        self.backend.write(&tensor, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// A u32 table, dense. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn table(&self, name: &str, rows: usize, cols: usize, values: &[u32]) -> Result<Tensor<B>> {
        let tensor = self.backend.tensor(rows, cols, DType::U32, Memory::Scratch, name)?;
        self.backend.write(&tensor, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// A float output prefilled with NaN and ringed with canaries; compared once the case has run. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn output(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        dtype: DType,
        tolerance: Tolerance,
    ) -> Result<Tensor<B>> {
        self.watched_of(name, rows, cols, dtype, &vec![f32::NAN; rows * cols], tolerance)
    }

    /// An operand that the op updates: given values, ringed, compared. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn watched_of(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        dtype: DType,
        values: &[f32],
        tolerance: Tolerance,
    ) -> Result<Tensor<B>> {
        let (whole, window) = self.windowed(name, rows, cols, dtype, values)?;
        self.watch(name, whole, window.clone(), RING, tolerance);
        Ok(window)
    }

    /// Dense state that the op updates: seeded, with a canary row before and after, compared. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn state(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        dtype: DType,
        fill: Fill,
        tolerance: Tolerance,
    ) -> Result<Tensor<B>> {
        let ring = RING.div_ceil(cols) * RING.min(cols.next_power_of_two());
        // Whole rows before the state, as many as put it at a multiple of 256 elements.
        let ring_rows = if RING.is_multiple_of(cols) { RING / cols } else { RING.max(ring) };
        let whole = self.backend.tensor(rows + 2 * ring_rows, cols, dtype, Memory::State, name)?;
        let mut values = vec![CANARY; ring_rows * cols];
        values.extend(self.stream(name).values(fill, rows * cols));
        values.extend(vec![CANARY; ring_rows * cols]);
        self.backend.write(&whole, &narrow(&values, dtype))?;
        let window = whole.row_range(ring_rows, rows);
        self.watch(name, whole, window.clone(), 0, tolerance);
        Ok(window)
    }

    /// A u32 output prefilled with all ones and ringed; compared exactly. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn output_u32(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor<B>> {
        let ring_rows = RING;
        let whole =
            self.backend.tensor(rows + 2 * ring_rows, cols, DType::U32, Memory::Scratch, name)?;
        let mut values = vec![CANARY_U32; ring_rows * cols];
        values.extend(vec![u32::MAX; rows * cols]);
        values.extend(vec![CANARY_U32; ring_rows * cols]);
        self.backend.write(&whole, bytemuck::cast_slice(&values))?;
        let window = whole.row_range(ring_rows, rows);
        self.watch(name, whole, window.clone(), 0, Tolerance::EXACT);
        Ok(window)
    }

    /// A weight of `experts` seeded matrices (1 for a plain weight), deviation `1 / sqrt(cols)`.
    ///
    /// # Errors
    /// The back end's.
    pub fn weight(
        &self,
        name: &str,
        experts: usize,
        rows: usize,
        cols: usize,
        format: Format,
    ) -> Result<Weight<B>> {
        let mut stream = self.stream(name);
        let deviation = 1.0 / (cols as f32).sqrt();
        let part = |e: usize| {
            let values = stream.values(Fill::Normal(deviation), rows * cols);
            stored_part(format!("{name}.{e}"), &values, format)
        };
        let stored = StoredWeight {
            name: name.into(),
            rows,
            cols,
            format,
            parts: (0..experts).map(part).collect(),
        };
        block_on(self.backend.load(&stored))
    }

    /// The tables of a batch: `(len, slot, position)` a segment, then `padding` rows of no segment, and
    /// `padding` empty entries in the segment table.
    ///
    /// # Errors
    /// The batch is not valid, or the back end's.
    pub fn segments(
        &self,
        slots: usize,
        context: usize,
        list: &[(u32, u32, u32)],
        padding: usize,
    ) -> Result<Segments<B>> {
        let mut segments = Vec::new();
        let mut first_row = 0;
        for &(len, slot, position) in list {
            segments.push(Segment { first_row, len, slot, position });
            first_row += len;
        }
        let rows = crate::batch::to_usize(first_row);
        let limits = BatchLimits { slots, context, vocabulary: 1, rows: rows.max(1) };
        let batch = Batch::new(&limits, vec![0; rows], segments.clone())?;
        segments.extend(vec![Segment { first_row: 0, len: 0, slot: 0, position: 0 }; padding]);
        let places = batch.places(rows + padding);
        let shape =
            BatchShape { rows: rows + padding, segments: segments.len(), ..BatchShape::of(&batch) };
        Ok(Segments {
            table: self.table(
                "segments.table",
                segments.len(),
                4,
                bytemuck::cast_slice(&segments),
            )?,
            places: self.table(
                "segments.places",
                places.len(),
                4,
                bytemuck::cast_slice(&places),
            )?,
            shape,
        })
    }

    fn watch(
        &self,
        name: &str,
        whole: Tensor<B>,
        window: Tensor<B>,
        before: usize,
        tolerance: Tolerance,
    ) {
        self.watched.borrow_mut().push(Watched {
            name: name.into(),
            whole,
            before,
            window,
            tolerance,
        });
    }

    /// A window of given values inside a buffer of canaries: a row above and below, a ring on both sides.
    fn windowed(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        dtype: DType,
        values: &[f32],
    ) -> Result<(Tensor<B>, Tensor<B>)> {
        let stride = (cols + 2 * RING).next_multiple_of(RING);
        let whole = self.backend.tensor(rows + 2, stride, dtype, Memory::Scratch, name)?;
        let mut all = vec![CANARY; (rows + 2) * stride];
        for (row, values) in values.chunks(cols).enumerate() {
            all[(row + 1) * stride + RING..][..cols].copy_from_slice(values);
        }
        self.backend.write(&whole, &narrow(&all, dtype))?;
        let window = whole.row_range(1, rows).columns(RING, cols);
        Ok((whole, window))
    }
}

/// Packs values the way a checkpoint stores them.
pub(crate) fn stored_part(name: String, values: &[f32], format: Format) -> StoredPart {
    let plain = |bytes: Vec<u8>| (bytes, None, 1.0);
    let (data, scales, scale) = match format {
        Format::F32 => plain(bytemuck::cast_slice(values).to_vec()),
        Format::F16 => plain(values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()),
        Format::BF16 => {
            plain(values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect())
        }
        Format::Fp8 => {
            let (bytes, scale) = to_fp8(values);
            (bytes, None, scale)
        }
        Format::Nvfp4 => {
            let packed = to_nvfp4(values);
            (packed.codes, Some(Plane::from_bytes(packed.scales)), packed.scale)
        }
    };
    StoredPart { name, data: Plane::from_bytes(data), scales, scale }
}

/// Drives a future of a back end that answers without an event loop.
///
/// Native back ends finish their own waiting inside `poll`; the browser runs the suite through its own executor.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::hint::spin_loop();
    }
}

impl<B: Backend> Watched<B> {
    /// The first thing wrong with the output against the reference's, if any. Takes the bytes of both wholes.
    pub(super) fn fault(&self, bytes: &[u8], reference: &[u8]) -> Option<String> {
        let (dtype, stride) = (self.whole.dtype(), self.whole.cols());
        let first_row = self.window.offset() / stride;
        let inside = |i: usize| {
            let (row, col) = (i / stride, i % stride);
            let in_rows = row >= first_row && row < first_row + self.window.rows();
            in_rows && col >= self.before && col < self.before + self.window.cols()
        };
        let place = |i: usize| {
            format!(
                "{}[{}, {}]",
                self.name,
                (i / stride) as i64 - first_row as i64,
                i % stride - self.before.min(i % stride)
            )
        };
        if dtype == DType::U32 {
            let (got, want) = (words(bytes), words(reference));
            return (0..got.len()).find(|&i| got[i] != want[i]).map(|i| {
                let what = if inside(i) { "is" } else { "lies outside the output and is" };
                format!("{} {what} {}, want {}", place(i), got[i], want[i])
            });
        }
        let (got, want) = (widen(bytes, dtype), widen(reference, dtype));
        (0..got.len()).find_map(|i| {
            if !inside(i) {
                return (got[i] != want[i]).then(|| {
                    format!(
                        "{} lies outside the output and was overwritten with {}",
                        place(i),
                        got[i]
                    )
                });
            }
            (!self.close(got[i], want[i], dtype))
                .then(|| format!("{} is {}, want {}", place(i), got[i], want[i]))
        })
    }

    fn close(&self, got: f32, want: f32, dtype: DType) -> bool {
        if want.is_nan() || got.is_nan() {
            // What the reference leaves unwritten stays as it was.
            return want.is_nan() && got.is_nan();
        }
        if got == want {
            return true;
        }
        let step = match dtype {
            DType::BF16 => 2f32.powi(-7),
            DType::F16 => 2f32.powi(-10),
            DType::F8E4M3 => 2f32.powi(-3),
            DType::F32 | DType::U32 => 0.0,
        };
        (got - want).abs()
            <= self.tolerance.absolute + (self.tolerance.relative + step) * want.abs()
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}
