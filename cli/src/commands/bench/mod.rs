//! `whipsnake bench`: prefill and decode speed, load time and memory, medians of several runs.

mod check;
mod compare;
mod measure;
mod ops;
mod plot;
mod profile;
mod report;

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use whipsnake_core::backend::Policy;
use whipsnake_core::batch::BatchLimits;
use whipsnake_core::checkpoint::{Checkpoint, Geometry};
use whipsnake_core::plan::{Plan, Request, Work};
use whipsnake_core::session::Session;

use crate::args::{BenchArgs, BenchSubject};
use crate::memory::process_memory;
use crate::output::Output;
use crate::runtime::{self, Model, Room};
use check::Check;
use report::{Figure, Phase, Report};

/// Runs the command.
pub fn run(args: &BenchArgs, quiet: bool) -> anyhow::Result<()> {
    let mut output = Output::stdout();
    if let [before, after] = args.compare.as_slice() {
        return output.text(&compare::table(before, after)?);
    }
    if args.subject == Some(BenchSubject::Ops) {
        return ops::run(args, &mut output);
    }
    let started = Instant::now();
    let (name, checkpoint) = open(args)?;
    let mut session = runtime::open_session(&checkpoint, &args.backend, room(args), quiet)?;
    let load_seconds = started.elapsed().as_secs_f64();
    if args.profile {
        profile::run(args, &mut *session, &mut output)?;
        return Ok(());
    }
    let figures = figures(args, &mut *session)?;
    let report = Report {
        model: name,
        backend: session.backend().to_owned(),
        load_seconds,
        repeat: args.repeat,
        ledger: session.ledger(),
        planned: planned(&checkpoint, &*session)?,
        process: process_memory(),
        figures: floors(args, figures, &Work::new(&checkpoint, &session.policy())?),
        checks: if args.no_check { Vec::new() } else { checks(args, &mut *session)? },
    };
    if let Some(path) = &args.json {
        write(path, &serde_json::to_vec_pretty(&report)?)?;
    }
    if let Some(path) = &args.svg {
        write(path, plot::svg(&report).as_bytes())?;
    }
    output.text(&report.table())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| path.display().to_string())
}

fn open(args: &BenchArgs) -> anyhow::Result<(String, Checkpoint)> {
    match &args.synthetic {
        Some(name) => {
            Ok((format!("{name} (synthetic)"), Checkpoint::synthetic(&Geometry::named(name)?, 1)?))
        }
        None => {
            let model = Model::open(&args.model)?;
            Ok((model.name, model.checkpoint))
        }
    }
}

/// Room for every measurement.
fn room(args: &BenchArgs) -> Room {
    let longest = args.prefill.iter().chain(&args.context).copied().max().unwrap_or(1).max(1);
    let slots = args.sequences.iter().copied().max().unwrap_or(1);
    let rows = args.prefill_chunk.map(|rows| rows.min(longest * slots));
    Room { slots, context: longest + args.decode.max(check::TOKENS) + 1, rows }
}

/// What `plan` says of this very session.
fn planned(checkpoint: &Checkpoint, session: &dyn Session) -> anyhow::Result<u64> {
    let policy: Policy = session.policy();
    let BatchLimits { slots, context, rows, .. } = session.limits();
    let dims = Room { slots, context, rows: Some(rows) }.dims(&policy);
    Ok(Plan::new(checkpoint, Request { policy, dims, widen: false })?.memory.total())
}

/// Prefill of every prompt length, then decode at every context, for every number of sequences.
fn figures(args: &BenchArgs, session: &mut dyn Session) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for &sequences in &args.sequences {
        for &prompt in &args.prefill {
            let contexts_apart = !args.context.is_empty();
            let decode = if contexts_apart { 0 } else { args.decode };
            figures.extend(measure::run(session, sequences, prompt, decode, args.repeat)?);
        }
        for &context in &args.context {
            let both = measure::run(session, sequences, context, args.decode, args.repeat)?;
            figures.extend(both.into_iter().filter(|f| f.phase == Phase::Decode));
        }
    }
    Ok(figures)
}

/// The same configurations once more, for what they say instead of how fast.
fn checks(args: &BenchArgs, session: &mut dyn Session) -> anyhow::Result<Vec<Check>> {
    let prompts = if args.context.is_empty() { &args.prefill } else { &args.context };
    let mut checks = Vec::new();
    for &sequences in &args.sequences {
        for &prompt in prompts {
            checks.push(check::run(session, sequences, prompt)?);
        }
    }
    Ok(checks)
}

/// Sets each figure beside what the device's ceilings allow, where they were given.
fn floors(args: &BenchArgs, mut figures: Vec<Figure>, work: &Work) -> Vec<Figure> {
    for figure in &mut figures {
        figure.set_work(work, args.ceilings);
    }
    figures
}
