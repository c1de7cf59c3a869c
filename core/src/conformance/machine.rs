//! A small stateful mixer with its slots, fed with sequences whose tokens are known by number and position.

use super::fill::{Fill, Stream};
use crate::backend::{Backend, Memory, StepKey};
use crate::batch::{Batch, BatchLimits, BatchShape, Chunk, Segment, Segments};
use crate::cpu::{narrow, widen};
use crate::error::Result;
use crate::ops::{Activation, Attention, CausalConv1d, KvAppend, KvCache, Rope, SsmScan};
use crate::step::Step;
use crate::tensor::{DType, Tensor};

/// Which ops the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixer {
    Conv,
    Scan,
    ConvThenScan,
    Attention,
}

impl Mixer {
    pub(super) const ALL: [Self; 4] = [Self::Conv, Self::Scan, Self::ConvThenScan, Self::Attention];

    fn outputs(self) -> usize {
        match self {
            Self::Conv => CHANNELS,
            Self::Scan | Self::ConvThenScan => HEADS * HEAD_DIM,
            Self::Attention => HEADS * WIDTH,
        }
    }
}

/// A share of a step: tokens `from..from + len` of a numbered sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub sequence: usize,
    pub from: usize,
    pub len: usize,
    pub slot: usize,
}

const SLOTS: usize = 6;
const CONTEXT: usize = 96;
const ROWS: usize = 128;
const HEADS: usize = 4;
/// Of the scan: `x` in columns from 0 of the input, `b` from 128, `c` from 256, `dt` from 384.
const HEAD_DIM: usize = 16;
const GROUPS: usize = 2;
const STATE: usize = 24;
/// The convolution runs over `x`, `b`, `c` and the gaps between them.
const CHANNELS: usize = 256 + GROUPS * STATE;
const TAPS: usize = 4;
/// Of attention: queries in columns from 0 of the input, keys from 128, values from 256.
const WIDTH: usize = 24;
const KV_HEADS: usize = 2;
const INPUTS: usize = 512;

/// A mixer on a back end, with state that starts as NaN.
pub(super) struct Machine<'a, B: Backend> {
    backend: &'a B,
    mixer: Mixer,
    x: Tensor<B>,
    convolved: Tensor<B>,
    out: Tensor<B>,
    table: Tensor<B>,
    places: Tensor<B>,
    taps: Tensor<B>,
    head_params: Tensor<B>,
    inv_freq: Tensor<B>,
    windows: Tensor<B>,
    states: Tensor<B>,
    cache: KvCache<B>,
}

impl<'a, B: Backend> Machine<'a, B> {
    pub(super) fn new(backend: &'a B, mixer: Mixer, dtype: DType) -> Result<Self> {
        let tensor = |name: &str, rows, cols, dtype, values: &[f32]| {
            let tensor = backend.tensor(rows, cols, dtype, Memory::Scratch, name)?;
            backend.write(&tensor, &narrow(values, dtype)).map(|()| tensor)
        };
        let garbage = |name: &str, rows, cols, dtype| {
            tensor(name, rows, cols, dtype, &vec![f32::NAN; rows * cols])
        };
        let param = |name: &str, rows, cols, fill| {
            let values = Stream::new("law", name).values(fill, rows * cols);
            tensor(name, rows, cols, DType::F32, &values)
        };
        let index = |name: &str, rows| backend.tensor(rows, 4, DType::U32, Memory::Scratch, name);
        Ok(Self {
            backend,
            mixer,
            x: garbage("x", ROWS, INPUTS, dtype)?,
            convolved: garbage("convolved", ROWS, INPUTS, dtype)?,
            out: garbage("out", ROWS, mixer.outputs(), dtype)?,
            table: index("table", ROWS)?,
            places: index("places", ROWS)?,
            taps: param("taps", CHANNELS, TAPS, Fill::Normal(0.5))?,
            head_params: param("head_params", 3, HEADS, Fill::Normal(0.7))?,
            inv_freq: param("inv_freq", 1, 4, Fill::Uniform(0.0, 1.0))?,
            windows: garbage("windows", SLOTS * CHANNELS, TAPS - 1, DType::F32)?,
            states: garbage("states", SLOTS * HEADS * HEAD_DIM, STATE, DType::F32)?,
            cache: KvCache {
                k: garbage("k", SLOTS * CONTEXT, KV_HEADS * WIDTH, DType::F32)?,
                v: garbage("v", SLOTS * CONTEXT, KV_HEADS * WIDTH, DType::F32)?,
                context: CONTEXT,
            },
        })
    }

    /// Runs one step with `padding` rows of NaN behind it; the outputs of its rows in order.
    pub(super) async fn run(&self, parts: &[Part], padding: usize) -> Result<Vec<Vec<f32>>> {
        let batch = batch(parts)?;
        let shape = BatchShape {
            rows: batch.rows() + padding,
            segments: parts.len() + padding,
            ..BatchShape::of(&batch)
        };
        let segments = self.load(parts, &batch, shape)?;
        self.encode(&segments)?;
        self.outputs(batch.rows()).await
    }

    /// Runs one step through [`Backend::run_step`], with bounds in place of its exact shape.
    pub(super) async fn run_keyed(
        &self,
        key: StepKey,
        parts: &[Part],
        bounds: BatchShape,
    ) -> Result<Vec<Vec<f32>>> {
        let batch = batch(parts)?;
        let segments = self.load(parts, &batch, bounds)?;
        self.backend.run_step(key, &mut || self.encode(&segments))?;
        self.outputs(batch.rows()).await
    }

    /// Writes the step's inputs and tables.
    fn load(&self, parts: &[Part], batch: &Batch, shape: BatchShape) -> Result<Segments<B>> {
        let mut inputs = Vec::with_capacity(shape.rows * INPUTS);
        for part in parts {
            for position in part.from..part.from + part.len {
                let (sequence, token) = (part.sequence.to_string(), position.to_string());
                let mut stream = Stream::new(&sequence, &token);
                inputs.extend(stream.values(Fill::Normal(0.6), INPUTS));
            }
        }
        inputs.resize(shape.rows * INPUTS, f32::NAN);
        let x = self.x.first_rows(shape.rows);
        self.backend.write(&x, &narrow(&inputs, x.dtype()))?;
        let mut entries = batch.segments().to_vec();
        entries.resize(shape.segments, Segment { first_row: 0, len: 0, slot: 0, position: 0 });
        let table = self.table.first_rows(shape.segments);
        self.backend.write(&table, bytemuck::cast_slice(&entries))?;
        let places = self.places.first_rows(shape.rows);
        self.backend.write(&places, bytemuck::cast_slice(&batch.places(shape.rows)))?;
        Ok(Segments { table, places, shape })
    }

    fn encode(&self, segments: &Segments<B>) -> Result<()> {
        let step = Step::new(self.backend);
        let x = self.x.first_rows(segments.shape.rows);
        let out = self.out.first_rows(segments.shape.rows);
        let convolved = self.convolved.first_rows(segments.shape.rows);
        match self.mixer {
            Mixer::Conv => self.convolve(&step, &x, &out, segments),
            Mixer::Scan => self.scan(&step, [&x, &x], &out, segments),
            Mixer::ConvThenScan => {
                let channels = convolved.columns(0, CHANNELS);
                self.convolve(&step, &x, &channels, segments)?;
                self.scan(&step, [&convolved, &x], &out, segments)
            }
            Mixer::Attention => self.attend(&step, &x, &out, segments),
        }
    }

    fn convolve(
        &self,
        step: &Step<'_, B>,
        x: &Tensor<B>,
        out: &Tensor<B>,
        segments: &Segments<B>,
    ) -> Result<()> {
        step.run(&CausalConv1d {
            x: x.columns(0, CHANNELS),
            weight: self.taps.clone(),
            bias: None,
            activation: Activation::Silu,
            state: self.windows.clone(),
            segments: segments.clone(),
            out: out.clone(),
        })
    }

    /// `x` holds `x`, `b` and `c`, then `dt`.
    fn scan(
        &self,
        step: &Step<'_, B>,
        [x, dt]: [&Tensor<B>; 2],
        out: &Tensor<B>,
        segments: &Segments<B>,
    ) -> Result<()> {
        step.run(&SsmScan {
            x: x.columns(0, HEADS * HEAD_DIM),
            b: x.columns(128, GROUPS * STATE),
            c: x.columns(256, GROUPS * STATE),
            dt: dt.columns(384, HEADS),
            head_params: self.head_params.clone(),
            dt_limit: [0.0, f32::INFINITY],
            head_dim: HEAD_DIM,
            state_size: STATE,
            state: self.states.clone(),
            segments: segments.clone(),
            out: out.clone(),
        })
    }

    fn attend(
        &self,
        step: &Step<'_, B>,
        x: &Tensor<B>,
        out: &Tensor<B>,
        segments: &Segments<B>,
    ) -> Result<()> {
        let [q, k, v] = [(0, HEADS), (128, KV_HEADS), (256, KV_HEADS)]
            .map(|(start, heads)| x.columns(start, heads * WIDTH));
        let segments = segments.clone();
        for x in [&q, &k] {
            let (x, inv_freq, segments) = (x.clone(), self.inv_freq.clone(), segments.clone());
            step.run(&Rope { x, inv_freq, head_dim: WIDTH, segments })?;
        }
        step.run(&KvAppend { k, v, cache: self.cache.clone(), segments: segments.clone() })?;
        step.run(&Attention {
            q,
            cache: self.cache.clone(),
            head_dim: WIDTH,
            scale: 0.2,
            segments,
            out: out.clone(),
        })
    }

    async fn outputs(&self, rows: usize) -> Result<Vec<Vec<f32>>> {
        let bytes = self.backend.read(&self.out.first_rows(rows)).await?;
        let values = widen(&bytes, self.out.dtype());
        Ok(values.chunks(self.out.cols()).map(<[f32]>::to_vec).collect())
    }
}

fn batch(parts: &[Part]) -> Result<Batch> {
    let limits = BatchLimits { slots: SLOTS, context: CONTEXT, vocabulary: 1, rows: ROWS };
    let chunk = |p: &Part| Chunk { tokens: vec![0; p.len], slot: p.slot, position: p.from };
    Batch::from_chunks(&limits, &parts.iter().map(chunk).collect::<Vec<_>>())
}
