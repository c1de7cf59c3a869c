//! Where a case builds its operands: inputs from seeds, outputs prefilled with NaN and ringed with canaries.

use super::fill::{Fill, Stream};
use super::ragged::Ragged;
use super::watched::{Tolerance, Watched};
use crate::backend::{Backend, Memory};
use crate::batch::{Segment, Segments};
use crate::cpu::narrow;
use crate::error::{Error, Result};
use crate::quant::{to_fp8, to_nvfp4};
use crate::step::Step;
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, Plane, StoredPart, StoredWeight, Weight};
use half::{bf16, f16};
use std::cell::RefCell;
use std::future::Future;

/// Columns in the ring on each side of a window: windows stay at multiples of 256 bytes for every dtype.
const RING: usize = 256;

/// Fills rings; a value no op computes.
const CANARY: f32 = -12288.0;
const CANARY_U32: u32 = 0xdead_beef;

/// Whole rows of `cols` columns that put what follows them at a multiple of [`RING`] elements.
fn ring_rows(cols: usize) -> usize {
    RING >> cols.trailing_zeros().min(RING.trailing_zeros())
}

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
        self.input_of(name, [rows, cols], self.activations, &values)
    }

    /// An input of given values inside a wider buffer. `shape`
    ///
    /// # Errors
    /// The back end's.
    pub fn input_of(
        &self,
        name: &str,
        shape: [usize; 2],
        dtype: DType,
        values: &[f32],
    ) -> Result<Tensor<B>> {
        self.windowed(name, shape[0], shape[1], dtype, values).map(|(_, window)| window)
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

    /// Dense state that the op updates: given values, canary rows before and after, compared. `shape`
    ///
    /// # Errors
    /// The back end's.
    pub fn state_of(
        &self,
        name: &str,
        shape: [usize; 2],
        dtype: DType,
        values: &[f32],
        tolerance: Tolerance,
    ) -> Result<Tensor<B>> {
        let [rows, cols] = shape;
        let ring = ring_rows(cols);
        let whole = self.backend.tensor(rows + 2 * ring, cols, dtype, Memory::State, name)?;
        let mut all = vec![CANARY; (rows + 2 * ring) * cols];
        all[ring * cols..][..rows * cols].copy_from_slice(values);
        self.backend.write(&whole, &narrow(&all, dtype))?;
        let window = whole.row_range(ring, rows);
        self.watch(name, whole, window.clone(), 0, tolerance);
        Ok(window)
    }

    /// A u32 output prefilled with all ones and ringed; compared exactly. `[rows, cols]`
    ///
    /// # Errors
    /// The back end's.
    pub fn output_u32(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor<B>> {
        self.watched_u32(name, [rows, cols], &vec![u32::MAX; rows * cols])
    }

    /// A u32 operand that the op updates: given values, ringed, compared exactly. `shape`
    ///
    /// # Errors
    /// The back end's.
    pub fn watched_u32(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
        values: &[u32],
    ) -> Result<Tensor<B>> {
        let ring = ring_rows(cols);
        let whole =
            self.backend.tensor(rows + 2 * ring, cols, DType::U32, Memory::Scratch, name)?;
        let mut all = vec![CANARY_U32; (rows + 2 * ring) * cols];
        all[ring * cols..][..rows * cols].copy_from_slice(values);
        self.backend.write(&whole, bytemuck::cast_slice(&all))?;
        let window = whole.row_range(ring, rows);
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
        at_once(self.backend.load(&stored))
    }

    /// Holds what is watched so far to a relative L2 instead of its tolerance, unless that is 0.
    pub fn allow_rounding(&self, relative: f32) {
        self.watched.borrow_mut().iter_mut().for_each(|watched| watched.rounding = relative);
    }

    /// The tables of a batch.
    ///
    /// # Errors
    /// The batch is not valid, or the back end's.
    pub fn segments(&self, ragged: &Ragged) -> Result<Segments<B>> {
        let (batch, shape) = ragged.batch()?;
        let mut table = batch.segments().to_vec();
        table.resize(shape.segments, Segment { first_row: 0, len: 0, slot: 0, position: 0 });
        let places = batch.places(shape.rows);
        Ok(Segments {
            table: self.table("table", table.len(), 4, bytemuck::cast_slice(&table))?,
            places: self.table("places", places.len(), 4, bytemuck::cast_slice(&places))?,
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
            rounding: 0.0,
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
/// Native back ends finish their own waiting inside `poll`. The browser never waits for the weights of a case, which are
/// small; one that it would wait for is an error, since what is waited for could not come before this returns.
fn at_once<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        if cfg!(target_arch = "wasm32") {
            return Err(Error::device("the weight is larger than the device takes at once"));
        }
        std::hint::spin_loop();
    }
}
