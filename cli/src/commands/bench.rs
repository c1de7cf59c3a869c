//! `whipsnake bench`: prefill and decode speed, load time and memory, medians of several runs.

use std::time::Instant;

use serde::Serialize;
use whipsnake_core::backend::Ledger;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::checkpoint::{Checkpoint, Geometry};
use whipsnake_core::session::{Output, Session, Want};
use whipsnake_wgpu::{Options, Timed, Wgpu};

use crate::args::{BackendChoice, BenchArgs};
use crate::memory::{ProcessMemory, process_memory};
use crate::output::{Output as Printer, thousands};
use crate::runtime::{self, Model};
use crate::select;

/// Median and spread of one measurement, in tokens a second.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    /// `prefill` or `decode`.
    phase: &'static str,
    /// Sequences that ran together.
    sequences: usize,
    /// Tokens of each prompt.
    prompt: usize,
    /// Tokens that were timed, of all sequences.
    tokens: usize,
    median: f64,
    min: f64,
    max: f64,
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    backend: &'static str,
    load_seconds: f64,
    repeat: usize,
    /// Bytes that the back end holds.
    ledger: Ledger,
    /// Bytes that the process holds, where the system tells.
    process: Option<ProcessMemory>,
    figures: Vec<Figure>,
}

/// Runs the command.
pub fn run(args: &BenchArgs, quiet: bool) -> anyhow::Result<()> {
    if let Some(filter) = &args.ops {
        return ops(args, filter);
    }
    let started = Instant::now();
    let (name, checkpoint) = open(args)?;
    let longest = args.prefill.iter().copied().max().unwrap_or(1);
    let slots = args.sequences.iter().copied().max().unwrap_or(1);
    let rows = args.prefill_chunk.unwrap_or(runtime::STEP_ROWS).min(longest);
    let dims = runtime::dims(&checkpoint, Some(longest + args.decode), slots, rows);
    let mut session = runtime::open_session(&checkpoint, &args.backend, dims, quiet)?;
    let load_seconds = started.elapsed().as_secs_f64();
    let mut figures = Vec::new();
    for &prompt in &args.prefill {
        for &sequences in &args.sequences {
            figures.extend(measure(&mut *session, args, prompt, sequences)?);
        }
    }
    let report = Report {
        model: name,
        backend: session.backend(),
        load_seconds,
        repeat: args.repeat,
        ledger: session.ledger(),
        process: process_memory(),
        figures,
    };
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
    }
    Printer::stdout().text(&table(&report))
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

/// Prefill and decode of `sequences` prompts of `prompt` tokens; the first, unmeasured run warms up.
fn measure(
    session: &mut dyn Session,
    args: &BenchArgs,
    prompt: usize,
    sequences: usize,
) -> anyhow::Result<Vec<Figure>> {
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for run in 0..=args.repeat {
        let started = Instant::now();
        let mut last = Vec::new();
        for slot in 0..sequences {
            last.push(prefill_one(session, slot, prompt)?);
        }
        let prefilled = started.elapsed().as_secs_f64();
        let started = Instant::now();
        for step in 0..args.decode {
            last = decode_step(session, &last, prompt + step)?;
        }
        let decoded = started.elapsed().as_secs_f64();
        if run > 0 {
            prefill.push((prompt * sequences) as f64 / prefilled);
            decode.push((args.decode * sequences) as f64 / decoded);
        }
    }
    Ok(vec![
        figure("prefill", sequences, prompt, prompt * sequences, &mut prefill),
        figure("decode", sequences, prompt, args.decode * sequences, &mut decode),
    ])
}

/// Runs one prompt of made-up tokens, different for each slot, and gives its greedy token.
fn prefill_one(session: &mut dyn Session, slot: usize, prompt: usize) -> anyhow::Result<u32> {
    let limits = session.limits();
    let vocabulary = u64::try_from(limits.vocabulary)?;
    let token = |i: usize| {
        let mixed = ((i * 31 + slot * 7919 + 17) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        u32::try_from(mixed % vocabulary)
    };
    let mut position = 0;
    let mut next = 0;
    while position < prompt {
        let len = limits.rows.min(prompt - position);
        let tokens = (position..position + len).map(token).collect::<Result<_, _>>()?;
        let batch = Batch::from_chunks(&limits, &[Chunk { tokens, slot, position }])?;
        position += len;
        let last = [u32::try_from(len - 1)?];
        let want = if position == prompt { Want::Greedy(&last) } else { Want::Nothing };
        if let Output::Tokens(tokens) = pollster::block_on(session.forward(&batch, want))? {
            next = tokens[0];
        }
    }
    Ok(next)
}

/// One decode step of every sequence.
fn decode_step(
    session: &mut dyn Session,
    tokens: &[u32],
    position: usize,
) -> anyhow::Result<Vec<u32>> {
    let chunk = |(slot, &token): (usize, &u32)| Chunk { tokens: vec![token], slot, position };
    let chunks: Vec<Chunk> = tokens.iter().enumerate().map(chunk).collect();
    let batch = Batch::from_chunks(&session.limits(), &chunks)?;
    let rows: Vec<u32> = (0..u32::try_from(tokens.len())?).collect();
    match pollster::block_on(session.forward(&batch, Want::Greedy(&rows)))? {
        Output::Tokens(tokens) => Ok(tokens),
        _ => anyhow::bail!("the step gave no tokens"),
    }
}

fn figure(
    phase: &'static str,
    sequences: usize,
    prompt: usize,
    tokens: usize,
    runs: &mut [f64],
) -> Figure {
    runs.sort_by(f64::total_cmp);
    let (min, max) = (runs[0], runs[runs.len() - 1]);
    Figure { phase, sequences, prompt, tokens, median: runs[runs.len() / 2], min, max }
}

/// Times single ops.
fn ops(args: &BenchArgs, filter: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.backend.backend == BackendChoice::Wgpu,
        "single ops are timed with --backend wgpu; CUDA's by `WHIPSNAKE_BENCH=<op> cargo test -p whipsnake-cuda --test bench`"
    );
    let options = Options { timed: Timed::Calls, ..select::wgpu_options(&args.backend)? };
    let gpu = Wgpu::open(&options)?;
    let mut printer = Printer::stdout();
    printer.text(&format!("{}\n", gpu.report()))?;
    let mut failed = None;
    let rows = whipsnake_wgpu::bench::bench(&gpu, filter, &mut |row| {
        if let Err(error) = printer.text(&format!("{row}\n")) {
            failed.get_or_insert(error);
        }
    })?;
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(&rows)?;
        std::fs::write(path, json).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
    }
    failed.map_or(Ok(()), Err)
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "{} on {}: loaded in {:.3} s, medians of {}\n",
        report.model, report.backend, report.load_seconds, report.repeat
    );
    text.push_str("phase     sequences   prompt   tokens      tok/s   (min to max)\n");
    for f in &report.figures {
        let speed =
            |v: f64| if v < 100.0 { format!("{v:.1}") } else { thousands(&format!("{v:.0}")) };
        text.push_str(&format!(
            "{:<9} {:>9} {:>8} {:>8} {:>10}   ({} to {})\n",
            f.phase,
            f.sequences,
            f.prompt,
            f.tokens,
            speed(f.median),
            speed(f.min),
            speed(f.max)
        ));
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let l = &report.ledger;
    text.push_str(&format!(
        "memory: weights {:.1} MiB, state {:.1}, keys and values {:.1}, scratch {:.1}\n",
        mib(l.weights),
        mib(l.state),
        mib(l.kv),
        mib(l.scratch)
    ));
    if let Some(process) = &report.process {
        text.push_str(&format!(
            "process: {:.1} MiB resident now, {:.1} MiB at the peak\n",
            mib(process.resident),
            mib(process.peak)
        ));
    }
    text
}
