//! Decoding ahead: the next step is queued before the tokens of the last one are read.

use super::{Engine, Plan, SequenceId, StepReport};
use crate::batch::{Batch, Chunk};
use crate::error::Result;
use crate::sampling::DrawRow;
use crate::session::{Choose, Output};

/// Steps that were queued and whose tokens were not collected.
pub(super) struct Flight {
    /// The sequence of each row and its slot.
    rows: Vec<(usize, SequenceId)>,
    /// How many steps.
    queued: usize,
}

impl Engine {
    /// Whether a queued step has news for a sequence; what nobody waits for is forgotten.
    pub(super) fn flies(&mut self) -> bool {
        let waited_for = |flight: &Flight| {
            flight.queued > 0 && flight.rows.iter().any(|row| self.is_running(*row))
        };
        let flies = self.flight.as_ref().is_some_and(waited_for);
        if !flies {
            self.flight = None;
        }
        flies
    }

    fn is_running(&self, (slot, id): (usize, SequenceId)) -> bool {
        self.slots[slot].as_ref().is_some_and(|s| s.id == id)
    }

    /// How the device chooses the tokens of a step that only decodes; none where only the host can.
    pub(super) fn flown(&self, plan: &Plan) -> Option<Vec<DrawRow>> {
        if !self.session.runs_ahead() || plan.prefill_rows > 0 {
            return None;
        }
        let row = |chunk: &Chunk| self.slots[chunk.slot].as_ref()?.sampler.row();
        let rows: Vec<DrawRow> = plan.chunks.iter().map(row).collect::<Option<_>>()?;
        let mut drawn = rows.iter().filter(|row| !row.is_greedy()).map(|row| row.top_k > 0);
        let first = drawn.next();
        drawn.all(|few| Some(few) == first).then_some(rows)
    }

    /// Queues a first step, whose tokens are known.
    pub(super) fn take_off(&mut self, plan: &Plan, rows: &[DrawRow]) -> Result<()> {
        let batch = Batch::from_chunks(&self.session.limits(), &plan.chunks)?;
        let best = rows.iter().all(DrawRow::is_greedy);
        self.session.start(&batch, if best { Choose::Best } else { Choose::Draw(rows) })?;
        self.advance(&plan.chunks);
        let row = |chunk: &Chunk| self.slots[chunk.slot].as_ref().map(|s| (chunk.slot, s.id));
        let rows = plan.chunks.iter().filter_map(row).collect();
        self.flight = Some(Flight { rows, queued: 1 });
        Ok(())
    }

    /// Queues another step where it is sure to be wanted unless a stop token comes, then collects the oldest.
    pub(super) async fn fly(&mut self) -> Result<StepReport> {
        let Some(mut flight) = self.flight.take() else { return Ok(StepReport::default()) };
        if self.another_is_wanted(&flight) {
            self.session.follow()?;
            flight.queued += 1;
            for (slot, _) in &flight.rows {
                self.slots[*slot].iter_mut().for_each(|s| s.position += 1);
            }
        }
        let tokens = self.session.collect().await?;
        flight.queued -= 1;
        let alive: Vec<_> = (0..)
            .zip(&flight.rows)
            .filter(|(_, row)| self.is_running(**row))
            .map(|(index, (slot, _))| (index, *slot))
            .collect();
        self.flight = Some(flight);
        let decode_rows = alive.len();
        let events = self.take(alive.into_iter(), &Output::Tokens(tokens));
        Ok(StepReport { events, prefill_rows: 0, decode_rows })
    }

    /// Whether all sequences of the flight go on past the tokens to come, and no other one wants to join.
    fn another_is_wanted(&self, flight: &Flight) -> bool {
        let running = self.slots.iter().flatten().count();
        if running != flight.rows.len() || (running < self.slots.len() && !self.waiting.is_empty())
        {
            return false;
        }
        let context = self.session.limits().context;
        flight.rows.iter().all(|row| {
            let sequence = self.slots[row.0].as_ref().filter(|s| s.id == row.1);
            sequence.is_some_and(|s| {
                let len = s.tokens.len() + flight.queued;
                len - s.prompt_len < s.max_tokens && len <= context
            })
        })
    }
}
