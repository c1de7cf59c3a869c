//! From options to a model that runs: which files, which device, how much room.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use whipsnake_core::backend::{Backend, Policy};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::error::Result;
use whipsnake_core::generation::GenerationConfig;
use whipsnake_core::model::Dims;
use whipsnake_core::model::weights::{LoadProgress, Progress};
use whipsnake_core::plan::{Plan, Request};
use whipsnake_core::sampling::{SamplingOptions, SamplingWishes};
use whipsnake_core::session::{DeviceSession, Session};
use whipsnake_core::tokenizer::Tokenizer;

use crate::args::{BackendArgs, ModelArgs, SamplingArgs};
use crate::embedded;
use crate::failure::Hinted;
use crate::hub::Hub;
use crate::select::{self, BackendTask};

/// A checkpoint with its text side.
pub struct Model {
    /// What the user called it.
    pub name: String,
    /// Weights and configuration.
    pub checkpoint: Checkpoint,
    /// Stop tokens and sampling defaults.
    pub generation: GenerationConfig,
}

impl Model {
    /// Opens the model that `args` names: a folder, a hub id, or the embedded one.
    pub fn open(args: &ModelArgs) -> anyhow::Result<Self> {
        let (name, checkpoint) = match &args.model {
            None => (embedded::NAME.to_string(), Checkpoint::from_memory(embedded::files())?),
            Some(model) => (model.clone(), Checkpoint::open(&folder(model)?)?),
        };
        tracing::info!(model = name, "opened");
        let generation = GenerationConfig::of(&checkpoint)?;
        Ok(Self { name, checkpoint, generation })
    }

    /// The checkpoint's tokenizer.
    pub fn tokenizer(&self) -> anyhow::Result<Tokenizer> {
        match Tokenizer::of(&self.checkpoint)? {
            Some(tokenizer) => Ok(tokenizer),
            None => Err(Hinted::new(format!("{} has no tokenizer.json", self.name))
                .hint("whipsnake logits --tokens 1,2,3, which needs none")
                .into()),
        }
    }

    /// How tokens are chosen: the model's own defaults, then what the user says.
    pub fn sampling(
        &self,
        args: &SamplingArgs,
        logprobs: Option<u32>,
    ) -> anyhow::Result<SamplingOptions> {
        let defaults =
            if args.is_greedy() { SamplingOptions::greedy() } else { self.generation.sampling() };
        let wishes = SamplingWishes {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repetition_penalty: args.repetition_penalty,
            presence_penalty: args.presence_penalty,
            frequency_penalty: args.frequency_penalty,
            logit_bias: args.logit_bias.iter().map(|b| (b.token, b.bias)).collect(),
            seed: args.seed,
            logprobs: logprobs.map(usize::try_from).transpose()?,
        };
        let options = wishes.over(defaults);
        options.check(self.checkpoint.spec().vocabulary)?;
        Ok(options)
    }
}

fn folder(model: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(model);
    if path.is_dir() { Ok(path.to_path_buf()) } else { Hub::from_env()?.resolve(model) }
}

/// A number that differs from run to run, for draws without a seed.
pub fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// Rows whose logits one pass of the head computes.
pub const OUTPUTS: usize = 64;

/// Rows below which steps are not cut to fit into memory, and bytes of it that are left to the driver.
const FEWEST_ROWS: usize = 512;
const SPARE: u64 = 256 << 20;

/// How much room a session gets.
#[derive(Clone, Copy)]
pub struct Room {
    /// Sequences that hold state at once.
    pub slots: usize,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Most rows of one step, where that is not for the back end to say.
    pub rows: Option<usize>,
}

impl Room {
    /// The sizes of a session on a back end of this policy.
    pub fn dims(self, policy: &Policy) -> Dims {
        let Self { slots, context, rows } = self;
        let rows = rows.unwrap_or_else(|| policy.step_rows.min(context * slots)).max(slots);
        Dims { slots, context, rows, outputs: OUTPUTS.min(rows) }
    }

    /// The same with steps cut to what fits into `free` bytes, where the user has not said how long they are.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn dims_within(
        self,
        checkpoint: &Checkpoint,
        policy: Policy,
        free: Option<u64>,
    ) -> Result<Dims> {
        let mut dims = self.dims(&policy);
        let Some(free) = free.filter(|_| self.rows.is_none()) else { return Ok(dims) };
        while dims.rows > FEWEST_ROWS.max(self.slots) {
            let plan = Plan::new(checkpoint, Request { policy, dims, widen: false })?;
            if plan.memory.total() + SPARE <= free {
                break;
            }
            let rows = Some((dims.rows / 2).max(FEWEST_ROWS));
            dims = Self { rows, ..self }.dims(&policy);
        }
        Ok(dims)
    }
}

/// Loads a model on the back end that was asked for, or the best one that works.
pub fn open_session(
    checkpoint: &Checkpoint,
    backend: &BackendArgs,
    room: Room,
    quiet: bool,
) -> anyhow::Result<Box<dyn Session>> {
    let bar = progress_bar(quiet);

    let progress = |step: LoadProgress<'_>| {
        bar.set_position(step.bytes);
        bar.set_message(step.name.to_string());
    };
    bar.set_length(checkpoint.inventory()?.read_bytes);
    let task = Open { checkpoint, room, progress: &progress };
    let session = select::on_backend(backend, quiet, task)?;
    bar.finish_and_clear();
    Ok(session)
}

/// Loads a checkpoint on a back end.
struct Open<'a> {
    checkpoint: &'a Checkpoint,
    room: Room,
    progress: Progress<'a>,
}

impl BackendTask for Open<'_> {
    type Output = Box<dyn Session>;

    fn run<B: Backend>(self, backend: B) -> anyhow::Result<Self::Output> {
        let (policy, free) = (backend.policy(), backend.free_memory());
        let dims = self.room.dims_within(self.checkpoint, policy, free)?;
        let session = DeviceSession::open(backend, self.checkpoint, dims, self.progress);
        Ok(Box::new(pollster::block_on(session)?))
    }
}

/// A bar on standard error while a person looks at it.
fn progress_bar(quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("loading {bar:30} {bytes}/{total_bytes} {wide_msg}");
    let bar = ProgressBar::new(0);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use whipsnake_core::cpu::Cpu;

    #[test]
    fn steps_are_cut_to_what_fits_unless_the_user_says() {
        let checkpoint = Checkpoint::from_memory(embedded::files()).unwrap();
        let policy = Policy { step_rows: 4096, ..Cpu::new().policy() };
        let room = Room { slots: 2, context: 4096, rows: None };
        let rows = |room: Room, free| room.dims_within(&checkpoint, policy, free).unwrap().rows;
        let total = |rows| {
            let dims = Room { rows: Some(rows), ..room }.dims(&policy);
            let plan = Plan::new(&checkpoint, Request { policy, dims, widen: false });
            plan.unwrap().memory.total() + SPARE
        };
        assert_eq!(rows(room, None), 4096);
        assert_eq!(rows(room, Some(total(4096))), 4096);
        assert_eq!(rows(room, Some(total(4096) - 1)), 2048);
        assert_eq!(rows(room, Some(total(1024))), 1024);
        assert_eq!(rows(room, Some(0)), FEWEST_ROWS);
        assert_eq!(rows(Room { rows: Some(3000), ..room }, Some(0)), 3000);
        assert_eq!(rows(Room { context: 100, ..room }, None), 200);
    }
}
