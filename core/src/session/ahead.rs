//! Steps queued before the tokens that they run are known: each leaves its choices where the next one reads its tokens.

use super::device::{DeviceSession, Kind, Pass};
use crate::backend::Backend;
use crate::batch::{Batch, BatchLimits, BatchShape, Segments};
use crate::error::{Error, Result};
use crate::ops::Argmax;
use crate::session::Session;
use crate::step::Step;
use crate::weight::LocalFuture;
use std::collections::VecDeque;

/// What was queued.
#[derive(Default)]
pub(super) struct Ahead {
    /// The last step.
    last: Option<Batch>,
    /// Tokens on their way, oldest first.
    coming: VecDeque<LocalFuture<'static, Result<Vec<u8>>>>,
}

impl<B: Backend> DeviceSession<B> {
    pub(super) fn queue_first(&mut self, batch: &Batch) -> Result<()> {
        if batch.longest() != 1 {
            return Err(Error::request(format!(
                "step: {} tokens of one sequence, want one of each to run ahead",
                batch.longest()
            )));
        }
        self.ahead = Ahead::default();
        let shape = self.backend.bucket(BatchShape::of(batch));
        self.write_tokens(batch, shape)?;
        self.queue(batch.clone(), shape)
    }

    pub(super) fn queue_next(&mut self) -> Result<()> {
        let Some(last) = &self.ahead.last else {
            return Err(Error::request("step: no step was queued that another could follow"));
        };
        let limits: BatchLimits = self.limits();
        let batch = last.following(&limits)?;
        let shape = self.backend.bucket(BatchShape::of(&batch));
        self.queue(batch, shape)
    }

    /// Queues a step whose tokens are on the device, or will be.
    fn queue(&mut self, batch: Batch, shape: BatchShape) -> Result<()> {
        let segments = self.write_tables(&batch, shape)?;
        let count = batch.rows();
        self.run_pass(Pass { kind: Kind::Ahead, count, greedy: true }, &segments)?;
        let coming = self.backend.read_later(&self.scratch.get("tokens", count, 1))?;
        self.ahead.coming.push_back(coming);
        self.ahead.last = Some(batch);
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
    ) -> Result<()> {
        let forward = self.forward_on(step, segments);
        let stream = forward.rows("stream", self.spec.hidden);
        let tokens = self.scratch.get("tokens", segments.shape.rows, 1);
        for first in (0..count).step_by(self.dims.outputs) {
            let rows = self.dims.outputs.min(count - first);
            let x = forward.head(&self.spec, &self.weights, &stream.row_range(first, rows))?;
            step.run(&Argmax { x, out: tokens.row_range(first, rows) })?;
        }
        Ok(())
    }
}
