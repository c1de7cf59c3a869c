//! Where a step's time goes: a table by op, and a trace that Perfetto opens.

use std::collections::BTreeMap;
use std::io::StdoutLock;

use serde_json::json;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::profile::OpTime;
use whipsnake_core::session::Session;

use super::measure::{decode_batch, prefill, token};
use crate::args::BenchArgs;
use crate::output::Output;

/// Profiles the decode step of every number of sequences and the first prefill step of every prompt length.
pub fn run(
    args: &BenchArgs,
    session: &mut dyn Session,
    output: &mut Output<StdoutLock<'static>>,
) -> anyhow::Result<()> {
    let mut tracks = Vec::new();
    for &prompt in &args.prefill {
        let limits = session.limits();
        let len = prompt.min(limits.rows);
        let tokens = (0..len).map(|i| token(limits.vocabulary, 0, i)).collect::<Result<_, _>>()?;
        let batch = Batch::from_chunks(&limits, &[Chunk { tokens, slot: 0, position: 0 }])?;
        let ops = pollster::block_on(session.profile(&batch))?;
        tracks.push((format!("prefill of {len} tokens"), ops));
    }
    for &sequences in &args.sequences {
        let context = args.context.first().or(args.prefill.first()).copied().unwrap_or(1);
        let tokens = prefill(session, sequences, context)?;
        let batch = decode_batch(session, &tokens, context)?;
        let ops = pollster::block_on(session.profile(&batch))?;
        tracks.push((format!("decode of {sequences} sequences at context {context}"), ops));
    }
    for (name, ops) in &tracks {
        output.text(&table(name, ops))?;
    }
    if let Some(path) = &args.trace {
        super::write(path, &serde_json::to_vec(&trace(&tracks))?)?;
    }
    Ok(())
}

fn table(name: &str, ops: &[OpTime]) -> String {
    let total: f64 = ops.iter().map(|op| op.microseconds).sum();
    let mut kinds: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for op in ops {
        let (count, sum) = kinds.entry(op.op).or_default();
        (*count, *sum) = (*count + 1, *sum + op.microseconds);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    let mut text = format!("{name}: {} ops, {total:.1} us\n", ops.len());
    text.push_str("op                  count      us each     us in all   share\n");
    for (op, (count, sum)) in kinds {
        text.push_str(&format!(
            "{op:<18} {count:>6} {:>12.2} {sum:>13.1} {:>6.1} %\n",
            sum / count as f64,
            100.0 * sum / total
        ));
    }
    text
}

/// Trace events, a thread for each step.
fn trace(tracks: &[(String, Vec<OpTime>)]) -> serde_json::Value {
    let mut events = Vec::new();
    for (thread, (name, ops)) in tracks.iter().enumerate() {
        events.push(json!({
            "ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": { "name": name },
        }));
        for op in ops {
            events.push(json!({
                "ph": "X", "pid": 1, "tid": thread, "name": op.op, "ts": op.start,
                "dur": op.microseconds, "args": { "weight": op.weight },
            }));
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns" })
}
