//! The device's clock behind ops of a step: events, which a captured graph holds as nodes of its own.

use crate::cuda::Cuda;
use crate::driver::checked;
use cudarc::driver::{CudaEvent, sys};
use std::rc::Rc;
use whipsnake_core::error::Result;

impl Cuda {
    /// Records an event behind the work so far.
    pub(crate) fn record_mark(&self) -> Result<()> {
        self.flush()?;
        let driver = self.driver();
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = checked("creating an event", driver.context().new_event(flags))?;
        let recorded = if self.capturing() {
            /// `CU_EVENT_RECORD_EXTERNAL`: a node of the graph, recorded again by every replay.
            const EXTERNAL: u32 = 1;
            let (event, stream) = (event.cu_event(), driver.stream().cu_stream());
            // SAFETY: both handles live through the call; the graph keeps its own reference to the event.
            unsafe { sys::cuEventRecordWithFlags(event, stream, EXTERNAL) }.result()
        } else {
            event.record(driver.stream())
        };
        checked("recording an event", recorded)?;
        self.marks_mut().push(Rc::new(event));
        Ok(())
    }

    /// Microseconds of the last step's marks since its first.
    pub(crate) fn read_marks(&self) -> Result<Vec<f64>> {
        let marks = self.marks_mut();
        let Some((first, last)) = marks.first().zip(marks.last()) else { return Ok(Vec::new()) };
        checked("waiting for an event", last.synchronize())?;
        let since = |mark: &Rc<CudaEvent>| {
            let milliseconds = checked("reading an event", first.elapsed_ms(mark))?;
            Ok(f64::from(milliseconds) * 1e3)
        };
        marks.iter().map(since).collect()
    }
}
