//! Timed runs on a session.

use std::time::Instant;

use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::session::{Choose, Output, Session, Want};

use super::report::{Figure, Phase};

/// Prefill and decode of `sequences` prompts of `prompt` tokens; the first, unmeasured run warms up.
pub fn run(
    session: &mut dyn Session,
    sequences: usize,
    prompt: usize,
    decode: usize,
    repeat: usize,
) -> anyhow::Result<Vec<Figure>> {
    let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
    for run in 0..=repeat {
        let started = Instant::now();
        let last = prefill(session, sequences, prompt)?;
        let prefilled = started.elapsed().as_secs_f64();
        let started = Instant::now();
        self::decode(session, last, prompt, decode)?;
        let decoded = started.elapsed().as_secs_f64();
        if run > 0 {
            prefills.push((prompt * sequences) as f64 / prefilled);
            decodes.push((decode * sequences) as f64 / decoded);
        }
    }
    let mut figures = vec![Figure::new(Phase::Prefill, sequences, prompt, prompt, prefills)];
    if decode > 0 {
        figures.push(Figure::new(Phase::Decode, sequences, prompt, decode, decodes));
    }
    Ok(figures)
}

/// Runs a prompt of made-up tokens through every slot, steps filled with as many rows as the session takes; the greedy
/// token behind each.
pub fn prefill(
    session: &mut dyn Session,
    sequences: usize,
    prompt: usize,
) -> anyhow::Result<Vec<u32>> {
    let limits = session.limits();
    let mut next = vec![0; sequences];
    let (mut slot, mut position) = (0, 0);
    while slot < sequences {
        let (mut chunks, mut ended, mut rows) = (Vec::new(), Vec::new(), 0);
        while slot < sequences && rows < limits.rows {
            let len = (limits.rows - rows).min(prompt - position);
            let tokens = (position..position + len)
                .map(|i| token(limits.vocabulary, slot, i))
                .collect::<anyhow::Result<_>>()?;
            chunks.push(Chunk { tokens, slot, position });
            (rows, position) = (rows + len, position + len);
            if position == prompt {
                ended.push((slot, u32::try_from(rows - 1)?));
                (slot, position) = (slot + 1, 0);
            }
        }
        let batch = Batch::from_chunks(&limits, &chunks)?;
        let last: Vec<u32> = ended.iter().map(|(_, row)| *row).collect();
        let want = if last.is_empty() { Want::Nothing } else { Want::Greedy(&last) };
        if let Output::Tokens(tokens) = pollster::block_on(session.forward(&batch, want))? {
            ended.iter().zip(tokens).for_each(|((slot, _), token)| next[*slot] = token);
        }
    }
    Ok(next)
}

/// A token of a made-up prompt, different for each slot.
pub fn token(vocabulary: usize, slot: usize, position: usize) -> anyhow::Result<u32> {
    let place = (position * 31 + slot * 7919 + 17) as u64;
    let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Ok(u32::try_from(mixed % u64::try_from(vocabulary)?)?)
}

/// So many decode steps of every sequence, as the engine runs them; the tokens before the first and after each.
pub fn decode(
    session: &mut dyn Session,
    first: Vec<u32>,
    position: usize,
    steps: usize,
) -> anyhow::Result<Vec<Vec<u32>>> {
    let ahead = session.runs_ahead();
    let mut chosen = vec![first];
    if ahead && steps > 0 {
        session.start(&decode_batch(session, &chosen[0], position)?, Choose::Best)?;
    }
    for step in 0..steps {
        if !ahead {
            let batch = decode_batch(session, &chosen[step], position + step)?;
            match pollster::block_on(session.forward(&batch, Want::Greedy(&batch.last_rows())))? {
                Output::Tokens(tokens) => chosen.push(tokens),
                _ => anyhow::bail!("the step gave no tokens"),
            }
            continue;
        }
        if step + 1 < steps {
            session.follow()?;
        }
        chosen.push(pollster::block_on(session.collect())?);
    }
    Ok(chosen)
}

/// A token for each of the first slots, all at one position.
pub fn decode_batch(
    session: &dyn Session,
    tokens: &[u32],
    position: usize,
) -> anyhow::Result<Batch> {
    let chunk = |(slot, &token): (usize, &u32)| Chunk { tokens: vec![token], slot, position };
    let chunks: Vec<Chunk> = tokens.iter().enumerate().map(chunk).collect();
    Ok(Batch::from_chunks(&session.limits(), &chunks)?)
}
