//! Steps as graphs: run once, captured the second time, replayed from then on.

use crate::cuda::Cuda;
use crate::driver::checked;
use cudarc::driver::{CudaEvent, CudaGraph, sys};
use std::rc::Rc;
use whipsnake_core::backend::StepKey;
use whipsnake_core::error::{Error, Result};

/// Steps that are remembered: more than the shapes that decoding meets, which come back, while prompts bring new ones for
/// as long as a program runs.
const MOST: usize = 512;

/// What is known of a step.
pub(crate) enum Recorded {
    /// It ran eagerly: kernels are loaded, workspaces have their size.
    Once,
    /// It can be replayed; with the marks that it records.
    Graph(CudaGraph, Vec<Rc<CudaEvent>>),
    /// It holds no work.
    Empty,
}

impl Cuda {
    /// Exactly one execution a call. A graph holds addresses: the caller keeps the operands of a key alive.
    pub(crate) fn replay(
        &self,
        key: StepKey,
        encode: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.marks_mut().clear();
        if let Some(recorded) = self.steps().get(&key) {
            match recorded {
                Recorded::Graph(graph, marks) => {
                    self.marks_mut().clone_from(marks);
                    return checked("launching a graph", graph.launch());
                }
                Recorded::Empty => return Ok(()),
                Recorded::Once => {}
            }
        }
        if !self.steps().contains_key(&key) {
            if self.steps().len() == MOST {
                self.driver().synchronize()?;
                self.steps_mut().clear();
            }
            encode()?;
            self.steps_mut().insert(key, Recorded::Once);
            return Ok(());
        }
        let recorded = match self.capture(encode)? {
            None => Recorded::Empty,
            Some(graph) => {
                checked("launching a graph", graph.launch())?;
                Recorded::Graph(graph, self.marks_mut().clone())
            }
        };
        self.steps_mut().insert(key, recorded);
        Ok(())
    }

    pub(crate) fn capture(
        &self,
        encode: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<CudaGraph>> {
        let stream = self.driver().stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        checked("beginning a capture", stream.begin_capture(mode))?;
        self.set_capturing(true);
        let encoded = encode();
        self.set_capturing(false);
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        // The error of the op says more than that of the capture it broke.
        encoded?;
        checked("ending a capture", graph)
    }

    /// Refuses what a graph cannot hold.
    pub(crate) fn outside_capture(&self, what: &str) -> Result<()> {
        if self.capturing() {
            return Err(Error::device(format!(
                "cuda: {what} inside a step, want it before or after"
            )));
        }
        Ok(())
    }
}
