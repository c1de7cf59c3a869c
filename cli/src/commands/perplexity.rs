//! `whipsnake perplexity`: how well a model predicts a text, the state carried from step to step.

use serde::Serialize;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::session::{Output, Want};

use crate::args::PerplexityArgs;
use crate::input;
use crate::output::Output as Printer;
use crate::runtime::{self, Model, Room};

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    backend: &'static str,
    /// Tokens that were predicted: all but the first.
    tokens: usize,
    bytes: usize,
    /// Mean negative log-probability of a token, in nats.
    nats_per_token: f64,
    perplexity: f64,
    bits_per_byte: f64,
}

/// Runs the command.
pub fn run(args: &PerplexityArgs, quiet: bool) -> anyhow::Result<()> {
    let text = input::text_file(&args.file)?;
    let model = Model::open(&args.model)?;
    let tokens = model.tokenizer()?.encode(&text)?;
    if tokens.len() < 2 {
        anyhow::bail!("{}: {} tokens, want at least 2", args.file.display(), tokens.len());
    }
    let context = tokens.len().min(model.checkpoint.spec().context);
    let room = Room { slots: 1, context, rows: Some(args.window) };
    let mut session = runtime::open_session(&model.checkpoint, &args.backend, room, quiet)?;
    let mut sum = 0.0;
    let predicted = tokens.len() - 1;
    for start in (0..predicted).step_by(args.window) {
        let end = predicted.min(start + args.window);
        // A text longer than the context starts anew at every whole context; within one the state is carried.
        let mut from = start;
        while from < end {
            let position = from % context;
            let to = end.min(from + context - position);
            let chunk = Chunk { tokens: tokens[from..to].to_vec(), slot: 0, position };
            let batch = Batch::from_chunks(&session.limits(), &[chunk])?;
            let wanted: Vec<u32> = (0..u32::try_from(to - from)?).collect();
            let Output::Logits(rows) =
                pollster::block_on(session.forward(&batch, Want::Logits(&wanted)))?
            else {
                anyhow::bail!("the step gave no logits");
            };
            sum += rows
                .iter()
                .zip(&tokens[from + 1..=to])
                .map(|(row, &next)| nats(row, next))
                .sum::<f64>();
            from = to;
        }
    }
    let nats_per_token = sum / predicted as f64;
    print(
        &Report {
            model: model.name,
            backend: session.backend(),
            tokens: predicted,
            bytes: text.len(),
            nats_per_token,
            perplexity: nats_per_token.exp(),
            bits_per_byte: sum / std::f64::consts::LN_2 / text.len() as f64,
        },
        args.json,
    )
}

/// Negative log-probability of `token` under a row of logits.
fn nats(row: &[f32], token: u32) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&l| f64::from(l - max).exp()).sum();
    let logit =
        usize::try_from(token).ok().and_then(|t| row.get(t)).copied().unwrap_or(f32::NEG_INFINITY);
    f64::from(max) + sum.ln() - f64::from(logit)
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    let mut printer = Printer::stdout();
    if json {
        return printer.json(report);
    }
    printer.text(&format!(
        "{}: perplexity {:.4} over {} tokens ({:.4} nats a token, {:.4} bits a byte) on {}\n",
        report.model,
        report.perplexity,
        report.tokens,
        report.nats_per_token,
        report.bits_per_byte,
        report.backend
    ))
}
