//! Times ops by events around a graph of them.

use crate::cuda::Cuda;
use crate::driver::checked;
use cudarc::driver::sys::CUevent_flags;
use whipsnake_core::bench::Timed;
use whipsnake_core::error::{Error, Result};

impl Timed for Cuda {
    fn time(&self, encode: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        // Loads the kernels and sizes the workspaces, which a capture cannot.
        encode()?;
        let graph = self.capture(None, encode)?.map(|(graph, _)| graph);
        let graph = graph.ok_or_else(|| Error::device("nothing was captured"))?;
        let stream = self.driver().stream();
        checked("launching a graph", graph.launch())?;
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let before = checked("recording an event", stream.record_event(flags))?;
        checked("launching a graph", graph.launch())?;
        let after = checked("recording an event", stream.record_event(flags))?;
        checked("waiting for an event", after.synchronize())?;
        let milliseconds = checked("reading an event", before.elapsed_ms(&after))?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}
