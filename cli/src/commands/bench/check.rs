//! What was timed is also right: every way of running a step gives the same tokens.

use serde::{Deserialize, Serialize};
use whipsnake_core::session::{Mode, Output, Session, Want};

use super::measure::{decode, decode_batch, prefill};

/// Tokens that are compared.
pub const TOKENS: usize = 64;
/// Sequences of a batch whose logits are read.
const SEQUENCES: usize = 8;

/// The check of one configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// Sequences that ran together.
    pub sequences: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens compared, of one sequence.
    pub tokens: usize,
    /// Where a way of running first chose another token than replayed, fused steps did.
    pub differences: Vec<Difference>,
}

/// Two ways of running that part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Difference {
    /// `eager` or `unfused`.
    pub mode: String,
    /// The sequence.
    pub sequence: usize,
    /// Tokens after the prompt.
    pub position: usize,
    /// The tokens and their logits in this mode: what replayed steps chose, and what this mode would have.
    pub logits: [(u32, f32); 2],
}

/// Decodes [`TOKENS`] with replayed steps, then forces the same tokens through steps run op by op, fused and not.
///
/// # Errors
/// The device's; or a logit is not finite.
pub fn run(session: &mut dyn Session, sequences: usize, prompt: usize) -> anyhow::Result<Check> {
    let ways = [
        ("eager", Mode { replay: false, fused: true }),
        ("unfused", Mode { replay: false, fused: false }),
    ];
    session.set_mode(Mode::default());
    let first = prefill(session, sequences, prompt)?;
    let chosen = decode(session, first, prompt, TOKENS)?;
    let mut differences = Vec::new();
    for (name, mode) in ways {
        session.set_mode(mode);
        differences.extend(first_difference(session, prompt, &chosen, name)?);
    }
    session.set_mode(Mode::default());
    Ok(Check { sequences, prompt, tokens: TOKENS, differences })
}

fn first_difference(
    session: &mut dyn Session,
    prompt: usize,
    chosen: &[Vec<u32>],
    mode: &str,
) -> anyhow::Result<Option<Difference>> {
    let sequences = chosen[0].len();
    prefill(session, sequences, prompt)?;
    for (step, pair) in chosen.windows(2).enumerate() {
        let batch = decode_batch(session, &pair[0], prompt + step)?;
        let rows: Vec<u32> = batch.last_rows().into_iter().take(SEQUENCES).collect();
        let Output::Logits(logits) =
            pollster::block_on(session.forward(&batch, Want::Logits(&rows)))?
        else {
            anyhow::bail!("the step gave no logits");
        };
        for (sequence, (logits, &token)) in logits.iter().zip(&pair[1]).enumerate() {
            anyhow::ensure!(
                logits.iter().all(|l| l.is_finite()),
                "sequence {sequence}, {step} tokens after its prompt: a logit is not finite"
            );
            let best = whipsnake_core::sampling::likeliest(logits);
            if best != token {
                let logit = |token: u32| anyhow::Ok(logits[usize::try_from(token)?]);
                let logits = [(token, logit(token)?), (best, logit(best)?)];
                let (mode, position) = (mode.to_owned(), step + 1);
                return Ok(Some(Difference { mode, sequence, position, logits }));
            }
        }
    }
    Ok(None)
}
