//! Device time, read from time stamps: of a run of ops, op by op in a profiled step, and by kernel over a whole program.

use crate::Wgpu;
use crate::recorder::Dispatch;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Write;
#[cfg(not(target_arch = "wasm32"))]
use std::time::{Duration, Instant};
#[cfg(not(target_arch = "wasm32"))]
use whipsnake_core::bench::Timed;
use whipsnake_core::error::{Error, Result};

/// Most time stamps of one submit: WebGPU's limit of a query set is 4,096.
const STAMPS: u32 = 1024;

/// Features that time stamps between dispatches need.
pub(crate) const FEATURES: wgpu::Features =
    wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);

/// Time stamps of one submit and the buffer that they are resolved into.
pub(crate) struct Stamps {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    /// Nanoseconds by kernel, and how often it ran; filled where every dispatch is timed.
    totals: Option<RefCell<HashMap<String, (u64, f64)>>>,
    /// Marks of the last step that had some, the one before its first dispatch included.
    marks: Cell<u32>,
    /// When the device was last timed.
    #[cfg(not(target_arch = "wasm32"))]
    ended: Cell<Option<Instant>>,
}

/// After so long a pause a card has lowered its clock, and after so much work it has raised it again.
#[cfg(not(target_arch = "wasm32"))]
const PAUSE: Duration = Duration::from_millis(20);
#[cfg(not(target_arch = "wasm32"))]
const WARM_UP: Duration = Duration::from_millis(300);

impl Stamps {
    /// For a device that was opened with [`FEATURES`].
    pub fn new(device: &wgpu::Device, every_dispatch: bool) -> Self {
        let set = device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("time stamps"),
            ty: wgpu::QueryType::Timestamp,
            count: STAMPS,
        });
        let resolved = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("time stamps"),
            size: u64::from(STAMPS) * 8,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Self {
            set,
            resolved,
            totals: every_dispatch.then(RefCell::default),
            marks: Cell::default(),
            #[cfg(not(target_arch = "wasm32"))]
            ended: Cell::default(),
        }
    }

    /// Whether every dispatch gets a stamp.
    pub fn every_dispatch(&self) -> bool {
        self.totals.is_some()
    }

    /// Puts stamp `index` behind what the pass has so far.
    pub fn mark(&self, pass: &mut wgpu::ComputePass<'_>, index: u32) {
        pass.write_timestamp(&self.set, index);
    }

    /// Puts `times` more marks behind what the pass has so far and `before` of its marks; how many were put. What is past
    /// the set is left out, which [`Wgpu::marks_read`] tells.
    pub fn mark_times(&self, pass: &mut wgpu::ComputePass<'_>, before: u32, times: u32) -> u32 {
        // Stamp 0 stands before the first dispatch.
        (before..before + times).filter(|mark| mark + 1 < STAMPS).for_each(|mark| {
            self.mark(pass, mark + 1);
        });
        times
    }

    /// Queues the reading of a step's marks.
    pub fn resolve_marks(&self, encoder: &mut wgpu::CommandEncoder, marks: u32) {
        self.marks.set(marks + 1);
        self.resolve(encoder, (marks + 1).min(STAMPS));
    }

    /// Queues the reading of the first `count` stamps.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder, count: u32) {
        encoder.resolve_query_set(&self.set, 0..count, &self.resolved, 0);
    }

    /// The table, slowest first.
    fn table(&self) -> String {
        let totals = self.totals.as_ref().map(RefCell::take).unwrap_or_default();
        let mut rows: Vec<_> = totals.into_iter().collect();
        rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
        let all: f64 = rows.iter().map(|row| row.1.1).sum();
        let mut text = format!("device time by kernel, {:.3} ms in all\n", all / 1e6);
        for (kernel, (runs, nanoseconds)) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:10.1} us {:5.1} % {runs:8} runs {:9.2} us each  {kernel}",
                nanoseconds / 1e3,
                100.0 * nanoseconds / all,
                nanoseconds / 1e3 / runs as f64
            );
        }
        text
    }
}

impl Wgpu {
    /// Nanoseconds between neighbouring stamps.
    async fn stamps_read(&self, stamps: &Stamps, count: u32) -> Result<Vec<f64>> {
        let bytes = self.read_raw(&stamps.resolved, u64::from(count) * 8).await?;
        let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
        let period = f64::from(self.queue.get_timestamp_period());
        Ok(ticks.windows(2).map(|w| w[1].saturating_sub(w[0]) as f64 * period).collect())
    }

    /// Marks the step that is recorded; see [`Backend::mark`](whipsnake_core::backend::Backend::mark).
    pub(crate) fn mark_step_time(&self) -> Result<()> {
        if !self.device.features().contains(FEATURES) {
            return Err(Error::request("wgpu: this device keeps no time of its ops"));
        }
        self.stamps.get_or_init(|| Stamps::new(&self.device, false));
        self.mark_step()
    }

    /// Microseconds of the marks of the last step since its first.
    pub(crate) async fn marks_read(&self) -> Result<Vec<f64>> {
        let Some(stamps) = self.stamps.get().filter(|s| s.marks.get() > 0) else {
            return Ok(Vec::new());
        };
        let count = stamps.marks.get();
        if count > STAMPS {
            let text = format!("wgpu: a step of {count} ops, at most {STAMPS} are timed");
            return Err(Error::device(text));
        }
        let times = self.stamps_read(stamps, count).await?;
        let mut now = 0.0;
        let ends = times.into_iter().map(|time| {
            now += time / 1e3;
            now
        });
        Ok(std::iter::once(0.0).chain(ends).collect())
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Wgpu {
    /// Microseconds of one submit of what `encode` encodes.
    fn time_once(&self, encode: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let Some(stamps) = self.stamps.get() else {
            return Err(Error::device("wgpu: the device was not opened for timing"));
        };
        self.flush_pending()?;
        self.wait()?;
        encode()?;
        self.flush(|encoder| stamps.resolve(encoder, 2))?;
        let stamps = pollster::block_on(self.stamps_read(stamps, 2))?;
        Ok(stamps[0] / 1e3)
    }

    /// Adds the times of a submit's dispatches to the table.
    pub(crate) fn account(&self, stamps: &Stamps, dispatches: &[Dispatch]) -> Result<()> {
        let Some(totals) = &stamps.totals else { return Ok(()) };
        // A batch of dispatches is below the stamps.
        let times = pollster::block_on(self.stamps_read(stamps, dispatches.len() as u32 + 1))?;
        let mut totals = totals.borrow_mut();
        for (dispatch, time) in dispatches.iter().zip(times) {
            let row = totals.entry(dispatch.kernel().into()).or_default();
            *row = (row.0 + 1, row.1 + time);
        }
        Ok(())
    }
}

/// Reading stamps waits, which a browser never does: there no table is kept.
#[cfg(target_arch = "wasm32")]
impl Wgpu {
    pub(crate) fn account(&self, _: &Stamps, _: &[Dispatch]) -> Result<()> {
        Ok(())
    }
}

/// On a device that was opened with [`Options::timed`](crate::Options). What is timed must fit one submit.
#[cfg(not(target_arch = "wasm32"))]
impl Timed for Wgpu {
    fn time(&self, encode: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let ended = self.stamps.get().and_then(|stamps| stamps.ended.get());
        let start = Instant::now();
        let cold = ended.is_none_or(|ended| ended.elapsed() > PAUSE);
        self.time_once(encode)?;
        while cold && start.elapsed() < WARM_UP {
            self.time_once(encode)?;
        }
        let time = self.time_once(encode);
        self.stamps.get().into_iter().for_each(|stamps| stamps.ended.set(Some(Instant::now())));
        time
    }
}

impl Drop for Wgpu {
    fn drop(&mut self) {
        if let Some(stamps) = self.stamps.get().filter(|s| s.every_dispatch()) {
            eprint!("{}", stamps.table());
        }
    }
}
