//! `whipsnake logits`: forced decoding, for comparing back ends and implementations.

use serde::Serialize;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::sampling::likeliest;
use whipsnake_core::session::{Output, Session, Want};

use crate::args::LogitsArgs;
use crate::output::Output as Printer;
use crate::runtime::{self, Model, Room};

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    backend: &'static str,
    /// Likeliest token after every row.
    argmax: Vec<u32>,
    /// Logits after the last row.
    logits_last: Vec<f32>,
    /// Logits of the rows that were asked for, in that order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logits: Vec<Vec<f32>>,
    /// Tokens that follow, each the likeliest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    greedy: Vec<u32>,
}

/// Runs the command.
pub fn run(args: &LogitsArgs, quiet: bool) -> anyhow::Result<()> {
    let chunks = args.chunks()?;
    let wanted = args.checked_rows()?;
    let model = Model::open(&args.model)?;
    let context = args.tokens.len() + args.greedy;
    let longest = chunks.iter().copied().max().unwrap_or(1);
    let room = Room { slots: 1, context, rows: Some(longest) };
    let mut session = runtime::open_session(&model.checkpoint, &args.backend, room, quiet)?;
    let mut rows = Vec::new();
    let mut position = 0;
    for len in chunks {
        let tokens = args.tokens[position..position + len].to_vec();
        rows.extend(step(&mut *session, tokens, position)?);
        position += len;
    }
    let mut report = Report {
        backend: session.backend(),
        argmax: rows.iter().map(|row| likeliest(row)).collect(),
        logits: wanted.iter().map(|&row| rows[row].clone()).collect(),
        logits_last: rows.pop().unwrap_or_default(),
        greedy: Vec::new(),
    };
    let mut token = likeliest(&report.logits_last);
    for step_index in 0..args.greedy {
        report.greedy.push(token);
        if step_index + 1 < args.greedy {
            let rows = step(&mut *session, vec![token], position)?;
            position += 1;
            token = rows.last().map_or(0, |row| likeliest(row));
        }
    }
    print(&report, args.json)
}

/// Logits after every token of a chunk.
fn step(
    session: &mut dyn Session,
    tokens: Vec<u32>,
    position: usize,
) -> anyhow::Result<Vec<Vec<f32>>> {
    let wanted: Vec<u32> = (0..u32::try_from(tokens.len())?).collect();
    let batch = Batch::from_chunks(&session.limits(), &[Chunk { tokens, slot: 0, position }])?;
    match pollster::block_on(session.forward(&batch, Want::Logits(&wanted)))? {
        Output::Logits(rows) => Ok(rows),
        _ => anyhow::bail!("the step gave no logits"),
    }
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    let mut printer = Printer::stdout();
    if json {
        return printer.json(report);
    }
    printer.text(&format!("backend  {}\nargmax   {:?}\n", report.backend, report.argmax))?;
    let mut best: Vec<usize> = (0..report.logits_last.len()).collect();
    best.sort_by(|&a, &b| report.logits_last[b].total_cmp(&report.logits_last[a]));
    for token in best.into_iter().take(10) {
        printer.text(&format!("  {token:>8} {:>10.4}\n", report.logits_last[token]))?;
    }
    if !report.greedy.is_empty() {
        printer.text(&format!("greedy   {:?}\n", report.greedy))?;
    }
    Ok(())
}
