//! Batches on a back end: tables up, ops encoded or replayed, outputs down.

use super::ahead::{Ahead, Choice};
use super::{Choose, Mode, Output, Session, Want};
use crate::backend::{Backend, Ledger, Policy, StepKey};
use crate::batch::{Batch, BatchLimits, BatchShape, RowPlace, Segment, Segments};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::model::scratch::Scratch;
use crate::model::state::State;
use crate::model::weights::{Progress, Weights, load};
use crate::model::{Dims, ModelSpec, forward::Forward};
use crate::ops::Argmax;
use crate::profile::{Marked, OpTime};
use crate::step::Step;
use crate::tensor::Tensor;
use crate::trace::Traced;
use crate::weight::LocalFuture;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A session on back end `B`.
pub struct DeviceSession<B: Backend> {
    pub(super) backend: B,
    pub(super) spec: ModelSpec,
    pub(super) weights: Weights<B>,
    state: State<B>,
    pub(super) scratch: Scratch<B>,
    pub(super) dims: Dims,
    mode: Mode,
    pub(super) ahead: Ahead,
}

impl<B: Backend> DeviceSession<B> {
    /// Loads `checkpoint` onto `backend` and allocates state and scratch for `dims`.
    ///
    /// # Errors
    /// The checkpoint's and the back end's; what was loaded by then is freed.
    pub async fn open(
        backend: B,
        checkpoint: &Checkpoint,
        dims: Dims,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let spec = checkpoint.spec().clone();
        check_dims(&spec, &dims)?;
        tracing::debug!(backend = backend.name(), "loading");
        let state = State::new(&backend, &spec, &dims)?;
        let scratch = Scratch::new(&backend, &spec, &dims)?;
        let weights = load(&backend, checkpoint, progress).await?;
        // Waits for the uploads: what the driver reports late, such as a full memory, ends here.
        backend.read(&scratch.get("tokens", 1, 1)).await?;
        tracing::info!(backend = backend.name(), bytes = ?backend.ledger(), "loaded");
        let (mode, ahead) = (Mode::default(), Ahead::default());
        Ok(Self { backend, spec, weights, state, scratch, dims, mode, ahead })
    }

    /// The ops of a step, in order, as [`Traced`] writes them.
    ///
    /// # Errors
    /// As [`Session::forward`].
    pub fn trace(&self, batch: &Batch) -> Result<Vec<String>> {
        let traced = Traced::new();
        let step = Step::traced(&self.backend, &traced);
        let segments = self.upload(batch, BatchShape::of(batch))?;
        self.encode(&step, &segments)?;
        self.encode_outputs(&step, &segments, batch.segments().len())?;
        Ok(traced.lines())
    }

    /// Writes a batch's tokens and tables, padded to `shape`.
    fn upload(&self, batch: &Batch, shape: BatchShape) -> Result<Segments<B>> {
        self.write_tokens(batch, shape)?;
        self.write_tables(batch, shape)
    }

    pub(super) fn write_tokens(&self, batch: &Batch, shape: BatchShape) -> Result<()> {
        let mut tokens = batch.tokens().to_vec();
        tokens.resize(shape.rows, 0);
        self.write("tokens", 1, &tokens).map(drop)
    }

    pub(super) fn write_tables(&self, batch: &Batch, shape: BatchShape) -> Result<Segments<B>> {
        let empty = Segment { first_row: 0, len: 0, slot: 0, position: 0 };
        let mut table = batch.segments().to_vec();
        table.resize(shape.segments, empty);
        let table = self.write("segments", 4, bytemuck::cast_slice(&table))?;
        let places: Vec<RowPlace> = batch.places(shape.rows);
        let places = self.write("places", 4, bytemuck::cast_slice(&places))?;
        Ok(Segments { table, places, shape })
    }

    pub(super) fn write(&self, name: &str, cols: usize, values: &[u32]) -> Result<Tensor<B>> {
        let tensor = self.scratch.get(name, values.len() / cols, cols);
        self.backend.write(&tensor, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    pub(super) fn forward_on<'a>(
        &'a self,
        step: &'a Step<'a, B>,
        segments: &'a Segments<B>,
    ) -> Forward<'a, B> {
        Forward { step, scratch: &self.scratch, segments }
    }

    fn encode(&self, step: &Step<'_, B>, segments: &Segments<B>) -> Result<()> {
        let tokens = self.scratch.get("tokens", segments.shape.rows, 1);
        self.forward_on(step, segments).blocks(&self.spec, &self.weights, &self.state, tokens)
    }

    fn encode_outputs(
        &self,
        step: &Step<'_, B>,
        segments: &Segments<B>,
        count: usize,
    ) -> Result<Tensor<B>> {
        let indices = self.scratch.get("out.rows", count, 1);
        self.forward_on(step, segments).logits(&self.spec, &self.weights, indices)
    }

    fn encode_greedy(
        &self,
        step: &Step<'_, B>,
        segments: &Segments<B>,
        count: usize,
    ) -> Result<Tensor<B>> {
        let logits = self.encode_outputs(step, segments, count)?;
        let out = self.scratch.get("out.tokens", count, 1);
        step.run(&Argmax { x: logits, out: out.clone() })?;
        Ok(out)
    }

    async fn run(&mut self, batch: &Batch, want: Want<'_>) -> Result<Output> {
        // Its tokens come from the host: no step can follow those that were queued before.
        self.ahead = Ahead::default();
        let rows = match want {
            Want::Nothing => &[],
            Want::Logits(rows) | Want::Greedy(rows) => rows,
        };
        check_rows(batch, rows)?;
        let shape = self.backend.bucket(BatchShape::of(batch));
        let segments = self.upload(batch, shape)?;
        let mut passes = rows.chunks(self.dims.outputs);
        let first = passes.next().unwrap_or(&[]);
        let greedy = matches!(want, Want::Greedy(_));
        self.write("out.rows", 1, first)?;
        self.run_pass(Pass { kind: Kind::Step, count: first.len(), greedy }, &segments)?;
        let mut output = OutputRows::default();
        self.gather(&mut output, first.len(), greedy).await?;
        for rows in passes {
            self.write("out.rows", 1, rows)?;
            self.run_pass(Pass { kind: Kind::Head, count: rows.len(), greedy }, &segments)?;
            self.gather(&mut output, rows.len(), greedy).await?;
        }
        Ok(match want {
            Want::Nothing => Output::Nothing,
            Want::Logits(_) => Output::Logits(output.logits),
            Want::Greedy(_) => Output::Tokens(output.tokens),
        })
    }

    /// Encodes or replays a pass.
    pub(super) fn run_pass(&self, pass: Pass, segments: &Segments<B>) -> Result<()> {
        let step = self.step();
        let mut encode = || self.encode_pass(&step, pass, segments);
        match self.mode.replay {
            true => self.backend.run_step(key(pass, segments.shape, self.mode), &mut encode),
            false => encode(),
        }
    }

    fn encode_pass(&self, step: &Step<'_, B>, pass: Pass, segments: &Segments<B>) -> Result<()> {
        if pass.kind != Kind::Head {
            self.encode(step, segments)?;
        }
        if let Kind::Ahead(choice) = pass.kind {
            return self.encode_choices(step, segments, pass.count, choice);
        }
        match (pass.count, pass.greedy) {
            (0, _) => Ok(()),
            (count, true) => self.encode_greedy(step, segments, count).map(drop),
            (count, false) => self.encode_outputs(step, segments, count).map(drop),
        }
    }

    fn step(&self) -> Step<'_, B> {
        let step = Step::new(&self.backend);
        if self.mode.fused { step } else { step.unfused() }
    }

    async fn profiled(&self, batch: &Batch) -> Result<Vec<OpTime>> {
        /// A back end that replays has recorded its step by then, and has replayed it once.
        const RUNS: usize = 4;
        let segments = self.upload(batch, self.backend.bucket(BatchShape::of(batch)))?;
        let mut rows = batch.last_rows();
        rows.truncate(self.dims.outputs);
        self.write("out.rows", 1, &rows)?;
        let pass = Pass { kind: Kind::Profile, count: rows.len(), greedy: true };
        let marked = Marked::default();
        let step = self.step().marked(&marked);
        for _ in 0..RUNS {
            self.backend.run_step(key(pass, segments.shape, self.mode), &mut || {
                marked.clear();
                self.backend.mark()?;
                self.encode_pass(&step, pass, &segments)
            })?;
        }
        marked.times(&self.backend.marks().await?)
    }

    async fn gather(&self, output: &mut OutputRows, count: usize, greedy: bool) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        if greedy {
            let bytes = self.backend.read(&self.scratch.get("out.tokens", count, 1)).await?;
            output.tokens.extend(bytemuck::pod_collect_to_vec::<u8, u32>(&bytes));
            return Ok(());
        }
        let bytes =
            self.backend.read(&self.scratch.get("out.logits", count, self.spec.vocabulary)).await?;
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        output.logits.extend(values.chunks(self.spec.vocabulary).map(<[f32]>::to_vec));
        Ok(())
    }
}

#[derive(Default)]
struct OutputRows {
    logits: Vec<Vec<f32>>,
    tokens: Vec<u32>,
}

impl<B: Backend> Session for DeviceSession<B> {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn limits(&self) -> BatchLimits {
        let Dims { slots, context, rows, .. } = self.dims;
        BatchLimits { slots, context, rows, vocabulary: self.spec.vocabulary }
    }

    fn backend(&self) -> &'static str {
        self.backend.name()
    }

    fn policy(&self) -> Policy {
        self.backend.policy()
    }

    fn ledger(&self) -> Ledger {
        self.backend.ledger()
    }

    fn forward<'a>(
        &'a mut self,
        batch: &'a Batch,
        want: Want<'a>,
    ) -> LocalFuture<'a, Result<Output>> {
        Box::pin(self.run(batch, want))
    }

    fn runs_ahead(&self) -> bool {
        self.backend.runs_ahead()
    }

    fn start(&mut self, batch: &Batch, choose: Choose<'_>) -> Result<()> {
        self.queue_first(batch, choose)
    }

    fn follow(&mut self) -> Result<()> {
        self.queue_next()
    }

    fn collect(&mut self) -> LocalFuture<'_, Result<Vec<u32>>> {
        Box::pin(self.oldest())
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    fn profile<'a>(&'a mut self, batch: &'a Batch) -> LocalFuture<'a, Result<Vec<OpTime>>> {
        self.ahead = Ahead::default();
        Box::pin(self.profiled(batch))
    }

    fn copy_slot(&mut self, from: usize, to: usize, tokens: usize) -> Result<()> {
        self.state.copy_slot(&Step::new(&self.backend), from, to, tokens)
    }
}

/// What a step encodes, beside the shape of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pass {
    pub kind: Kind,
    /// Rows whose outputs are wanted.
    pub count: usize,
    /// Their tokens, not their logits.
    pub greedy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Blocks and head.
    Step,
    /// The same for every row, whose tokens become those of the next step.
    Ahead(Choice),
    /// More rows of the head, of a step that ran.
    Head,
    /// A step with marks.
    Profile,
}

/// Steps with the same key encode the same list of ops: everything that shapes it goes in.
fn key(pass: Pass, shape: BatchShape, mode: Mode) -> StepKey {
    let mut hasher = DefaultHasher::new();
    (pass, shape, mode).hash(&mut hasher);
    StepKey(hasher.finish())
}

fn check_dims(spec: &ModelSpec, dims: &Dims) -> Result<()> {
    let positive = [
        ("slots", dims.slots),
        ("context", dims.context),
        ("rows", dims.rows),
        ("outputs", dims.outputs),
    ];
    for (name, value) in positive {
        if value == 0 || u32::try_from(value).is_err() {
            return Err(Error::request(format!("session: {name} is {value}, want at least 1")));
        }
    }
    if dims.context > spec.context {
        return Err(Error::request(format!(
            "session: a context of {} is longer than the {} that the checkpoint was made for; ask for less",
            dims.context, spec.context
        )));
    }
    Ok(())
}

fn check_rows(batch: &Batch, rows: &[u32]) -> Result<()> {
    match rows.iter().find(|&&row| crate::batch::to_usize(row) >= batch.rows()) {
        Some(row) => Err(Error::request(format!(
            "step: row {row} is wanted, the batch has {}",
            batch.rows()
        ))),
        None => Ok(()),
    }
}
