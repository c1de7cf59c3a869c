//! Steps as graphs: run once, captured the second time, replayed from then on.

use crate::cuda::Cuda;
use crate::driver::checked;
use crate::memory::CudaBuffer;
use cudarc::driver::{CudaEvent, CudaGraph, sys};
use std::rc::Rc;
use whipsnake_core::backend::StepKey;
use whipsnake_core::error::{Error, Result};

/// Steps that are remembered: more than the shapes that decoding meets, which come back, while prompts bring new ones for
/// as long as a program runs.
const MOST: usize = 512;

/// What is known of a step.
pub(crate) enum Recorded {
    /// It ran eagerly: kernels are loaded, workspaces have their size, programs their places.
    Once(Vec<CudaBuffer>),
    /// It can be replayed.
    Graph(Graph),
    /// It holds no work.
    Empty,
}

/// A step as a graph.
pub(crate) struct Graph {
    graph: CudaGraph,
    /// What it records.
    marks: Vec<Rc<CudaEvent>>,
    /// The programs that it runs, kept for as long.
    _programs: Vec<CudaBuffer>,
}

impl Cuda {
    /// Exactly one execution a call. A graph holds addresses: the caller keeps the operands of a key alive.
    pub(crate) fn replay(
        &self,
        key: StepKey,
        encode: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.marks_mut().clear();
        let mut places = None;
        if let Some(recorded) = self.steps().get(&key) {
            match recorded {
                Recorded::Graph(recorded) => {
                    self.marks_mut().clone_from(&recorded.marks);
                    return checked("launching a graph", recorded.graph.launch());
                }
                Recorded::Empty => return Ok(()),
                Recorded::Once(programs) => places = Some(programs.clone()),
            }
        }
        let Some(places) = places else { return self.run_once(key, encode) };
        let recorded = match self.capture(Some(places), encode)? {
            None => Recorded::Empty,
            Some((graph, _programs)) => {
                checked("launching a graph", graph.launch())?;
                let marks = self.marks_mut().clone();
                Recorded::Graph(Graph { graph, marks, _programs })
            }
        };
        self.steps_mut().insert(key, recorded);
        Ok(())
    }

    fn run_once(&self, key: StepKey, encode: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.steps().len() == MOST {
            self.driver().synchronize()?;
            self.steps_mut().clear();
        }
        self.begin_programs(Vec::new());
        let (programs, _) = self.end_programs(encode())?;
        self.steps_mut().insert(key, Recorded::Once(programs));
        Ok(())
    }

    /// The step as a graph, and the programs that it runs: `places` are those of an earlier run, None where each op is to be
    /// launched.
    pub(crate) fn capture(
        &self,
        places: Option<Vec<CudaBuffer>>,
        encode: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<(CudaGraph, Vec<CudaBuffer>)>> {
        let stream = self.driver().stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        checked("beginning a capture", stream.begin_capture(mode))?;
        self.set_capturing(true);
        places.into_iter().for_each(|places| self.begin_programs(places));
        let encoded = self.end_programs(encode());
        self.set_capturing(false);
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        // The error of the op says more than that of the capture it broke.
        let (programs, texts) = encoded?;
        for (program, text) in programs.iter().zip(&texts) {
            self.write_program(program, text)?;
        }
        Ok(checked("ending a capture", graph)?.map(|graph| (graph, programs)))
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
