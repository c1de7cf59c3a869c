//! Steps queued before the tokens that they run are known: each leaves its choices where the next one reads its tokens.

use super::device::{DeviceSession, Kind, Pass};
use crate::backend::Backend;
use crate::batch::{Batch, BatchLimits, BatchShape, Segments, to_usize};
use crate::error::{Error, Result};
use crate::ops::{Argmax, DRAW_WORDS, Draw, TopK};
use crate::sampling::{DrawRow, MOST_CANDIDATES};
use crate::session::{Choose, Session};
use crate::step::Step;
use crate::tensor::Tensor;
use crate::weight::LocalFuture;
use std::collections::VecDeque;

/// What was queued.
#[derive(Default)]
pub(super) struct Ahead {
    /// The last step, and how its tokens are chosen.
    last: Option<(Batch, Choice)>,
    /// Tokens on their way, oldest first.
    coming: VecDeque<LocalFuture<'static, Result<Vec<u8>>>>,
}

/// How a step's tokens are chosen, as far as it shapes the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Choice {
    Best,
    /// Among so many of the best, or all where that is 0.
    Drawn {
        among: usize,
    },
}

impl Choice {
    /// Few counts of candidates serve all rows, so that few steps are recorded.
    fn of(rows: &[DrawRow], vocabulary: usize) -> Result<Self> {
        let drawn = || rows.iter().filter(|row| !row.is_greedy());
        let most = drawn().map(|row| to_usize(row.top_k)).max().unwrap_or(0);
        if most == 0 {
            return Ok(Self::Drawn { among: 0 });
        }
        let candidates = to_usize(MOST_CANDIDATES);
        if most > candidates || drawn().any(|row| row.top_k == 0) {
            return Err(Error::request(format!(
                "step: rows draw from up to {most} tokens and from all, want up to {candidates} or all for every row"
            )));
        }
        Ok(Self::Drawn { among: most.next_power_of_two().max(64).min(candidates).min(vocabulary) })
    }
}

impl<B: Backend> DeviceSession<B> {
    pub(super) fn queue_first(&mut self, batch: &Batch, choose: Choose<'_>) -> Result<()> {
        if batch.longest() != 1 {
            return Err(Error::request(format!(
                "step: {} tokens of one sequence, want one of each to run ahead",
                batch.longest()
            )));
        }
        self.ahead = Ahead::default();
        let shape = self.backend.bucket(BatchShape::of(batch));
        let choice = match choose {
            Choose::Best => Choice::Best,
            Choose::Draw(rows) => self.write_draws(batch, rows)?,
        };
        self.write_tokens(batch, shape)?;
        self.queue(batch.clone(), shape, choice)
    }

    fn write_draws(&self, batch: &Batch, rows: &[DrawRow]) -> Result<Choice> {
        if rows.len() != batch.rows() {
            return Err(Error::request(format!(
                "step: {} rows to draw by, want {} (rows of the batch)",
                rows.len(),
                batch.rows()
            )));
        }
        self.write("out.draws", DRAW_WORDS, bytemuck::cast_slice(rows))?;
        Choice::of(rows, self.spec.vocabulary)
    }

    pub(super) fn queue_next(&mut self) -> Result<()> {
        let Some((last, choice)) = &self.ahead.last else {
            return Err(Error::request("step: no step was queued that another could follow"));
        };
        let limits: BatchLimits = self.limits();
        let (batch, choice) = (last.following(&limits)?, *choice);
        let shape = self.backend.bucket(BatchShape::of(&batch));
        self.queue(batch, shape, choice)
    }

    /// Queues a step whose tokens are on the device, or will be.
    fn queue(&mut self, batch: Batch, shape: BatchShape, choice: Choice) -> Result<()> {
        let segments = self.write_tables(&batch, shape)?;
        let count = batch.rows();
        self.run_pass(Pass { kind: Kind::Ahead(choice), count, greedy: true }, &segments)?;
        let coming = self.backend.read_later(&self.scratch.get("tokens", count, 1))?;
        self.ahead.coming.push_back(coming);
        self.ahead.last = Some((batch, choice));
        Ok(())
    }

    pub(super) async fn oldest(&mut self) -> Result<Vec<u32>> {
        let Some(coming) = self.ahead.coming.pop_front() else {
            return Err(Error::request("step: no step was queued whose tokens could come"));
        };
        Ok(bytemuck::pod_collect_to_vec(&coming.await?))
    }

    /// The next token of each of the first `count` rows, in place of the one that ran.
    pub(super) fn encode_choices(
        &self,
        step: &Step<'_, B>,
        segments: &Segments<B>,
        count: usize,
        choice: Choice,
    ) -> Result<()> {
        let forward = self.forward_on(step, segments);
        let stream = forward.rows("stream", self.spec.hidden);
        let tokens = self.scratch.get("tokens", segments.shape.rows, 1);
        for first in (0..count).step_by(self.dims.outputs) {
            let rows = self.dims.outputs.min(count - first);
            let x = forward.head(&self.spec, &self.weights, &stream.row_range(first, rows))?;
            let out = tokens.row_range(first, rows);
            match choice {
                Choice::Best => step.run(&Argmax { x, out })?,
                Choice::Drawn { among } => {
                    let ways = self.scratch.get("out.draws", count, DRAW_WORDS);
                    self.encode_draw(step, x, among, ways.row_range(first, rows), out)?;
                }
            }
        }
        Ok(())
    }

    fn encode_draw(
        &self,
        step: &Step<'_, B>,
        x: Tensor<B>,
        among: usize,
        ways: Tensor<B>,
        out: Tensor<B>,
    ) -> Result<()> {
        if among == 0 {
            return step.run(&Draw { x, columns: None, rows: ways, out });
        }
        let values = self.scratch.get("out.values", x.rows(), among);
        let indices = self.scratch.get("out.columns", x.rows(), among);
        step.run(&TopK { x, values: values.clone(), indices: indices.clone() })?;
        step.run(&Draw { x: values, columns: Some(indices), rows: ways, out })
    }
}
