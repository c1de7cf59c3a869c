//! Dispatches between submits: bind groups and parameters by content, steps recorded and replayed.

use crate::Wgpu;
use crate::call::{Binding, Call};
use crate::grid;
use crate::kernel::Pipeline;
use std::collections::HashMap;
use std::rc::Rc;
use whipsnake_core::backend::StepKey;
use whipsnake_core::error::{Error, Result};

/// Bytes of one entry of the uniform ring: the offset alignment that every device accepts.
const ENTRY: u64 = 256;
/// Entries of the uniform ring.
const ENTRIES: usize = 4096;
/// Dispatches after which a submit is due, so that the device starts while the host encodes.
const BATCH: usize = 512;

/// Dispatches of a part of a repeated step that is encoded while an earlier part runs.
const PART: usize = 64;

/// A step of at least this many dispatches is handed over in two parts: the device starts on the first while the driver
/// takes the second. Shorter steps lose more by a second submit.
const LONG: usize = 128;
/// Dispatches of the first.
const FIRST_PART: usize = 32;

/// One encoded dispatch.
#[derive(Clone)]
pub(crate) struct Dispatch {
    pipeline: Rc<Pipeline>,
    group: wgpu::BindGroup,
    params: u32,
    grid: [u32; 2],
    /// Marks behind it: an op that needed no dispatch leaves its mark behind the one before.
    marks: u32,
}

#[cfg(not(target_arch = "wasm32"))]
impl Dispatch {
    /// The kernel that it runs.
    pub fn kernel(&self) -> &str {
        &self.pipeline.name
    }
}

/// Identity of a bind group: the pipeline, then buffer, offset and size of each binding.
type GroupKey = (usize, Vec<(u64, u64, u64)>);

/// What is encoded and not yet submitted, and the caches that make encoding cheap.
pub(crate) struct Recorder {
    pending: Vec<Dispatch>,
    groups: HashMap<GroupKey, wgpu::BindGroup>,
    /// Parameters that are in the ring, by content: a step that repeats finds its own again.
    params: HashMap<Vec<u32>, u32>,
    ring: wgpu::Buffer,
    recording: Option<Vec<Dispatch>>,
    steps: HashMap<StepKey, Rc<[Dispatch]>>,
    /// The last step's commands, encoded again while the device ran it: the next one of its key only submits them.
    ready: Option<(StepKey, Vec<wgpu::CommandBuffer>)>,
}

impl Recorder {
    pub fn new(device: &wgpu::Device) -> Self {
        let ring = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("parameters"),
            size: ENTRY * ENTRIES as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Self {
            pending: Vec::new(),
            groups: HashMap::new(),
            params: HashMap::new(),
            ring,
            recording: None,
            steps: HashMap::new(),
            ready: None,
        }
    }

    fn forget_steps(&mut self) {
        self.steps.clear();
        self.ready = None;
    }
}

impl Wgpu {
    /// Encodes a call over `groups` workgroups; none is nothing to do.
    pub(crate) fn dispatch(&self, call: Call, groups: usize) -> Result<()> {
        if groups == 0 {
            return Ok(());
        }
        let call = call.finish()?;
        let limit = self.limits.max_compute_workgroups_per_dimension;
        let grid = grid::split(groups as u64, limit).ok_or_else(|| {
            Error::device(format!("{groups} workgroups, the device takes {limit} x {limit}"))
                .within(&call.kernel)
        })?;
        self.check_bindings(&call)?;
        let writes: Vec<bool> = call.bindings.iter().map(|b| b.writes).collect();
        let pipeline = self.pipeline(&call.kernel, &writes)?;
        let params = self.params(&call.params)?;
        let group = self.group(&pipeline, &call.bindings);
        self.push(Dispatch { pipeline, group, params, grid, marks: 0 })
    }

    fn check_bindings(&self, call: &Call) -> Result<()> {
        let most = self.limits.max_storage_buffer_binding_size;
        match call.bindings.iter().find(|b| b.bytes > most) {
            None => Ok(()),
            Some(b) => Err(Error::device(format!(
                "an operand spans {} bytes, the device binds at most {most}; use a smaller context, fewer slots or a smaller batch",
                b.bytes
            ))
            .within(&call.kernel)),
        }
    }

    fn push(&self, dispatch: Dispatch) -> Result<()> {
        let mut recorder = self.recorder.borrow_mut();
        if let Some(recording) = &mut recorder.recording {
            recording.push(dispatch.clone());
        }
        recorder.pending.push(dispatch);
        let full = recorder.pending.len() >= BATCH;
        drop(recorder);
        if full { self.flush(|_| ()).map(drop) } else { Ok(()) }
    }

    /// Puts a mark behind what the step has recorded so far; the one before its first dispatch needs no place.
    pub(crate) fn mark_step(&self) -> Result<()> {
        let mut recorder = self.recorder.borrow_mut();
        let Some(recording) = &mut recorder.recording else {
            return Err(Error::device("wgpu: a step that the host writes into cannot be profiled"));
        };
        recording.last_mut().into_iter().for_each(|last| last.marks += 1);
        Ok(())
    }

    /// Offset of the parameters in the ring.
    fn params(&self, words: &[u32]) -> Result<u32> {
        debug_assert!(words.len() * 4 <= ENTRY as usize, "parameters fit an entry");
        if let Some(&offset) = self.recorder.borrow().params.get(words) {
            return Ok(offset);
        }
        if self.recorder.borrow().params.len() == ENTRIES {
            // What is pending still reads the old entries, and so do recorded steps.
            self.flush(|_| ())?;
            let mut recorder = self.recorder.borrow_mut();
            recorder.params.clear();
            recorder.forget_steps();
            recorder.recording = None;
        }
        let mut recorder = self.recorder.borrow_mut();
        // At most `ENTRIES` entries: the offset is about a million.
        let offset = recorder.params.len() as u32 * ENTRY as u32;
        self.queue.write_buffer(&recorder.ring, u64::from(offset), bytemuck::cast_slice(words));
        recorder.params.insert(words.to_vec(), offset);
        Ok(offset)
    }

    fn group(&self, pipeline: &Pipeline, bindings: &[Binding]) -> wgpu::BindGroup {
        let identity = bindings.iter().map(|b| (b.buffer.id(), b.offset, b.bytes)).collect();
        let key = (pipeline.id, identity);
        let mut recorder = self.recorder.borrow_mut();
        if let Some(group) = recorder.groups.get(&key) {
            return group.clone();
        }
        let part = |buffer, offset, size| {
            let size = wgpu::BufferSize::new(size);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
        };
        let params = part(&recorder.ring, 0, ENTRY);
        let mut entries = vec![wgpu::BindGroupEntry { binding: 0, resource: params }];
        entries.extend((1..).zip(bindings).map(|(binding, b)| wgpu::BindGroupEntry {
            binding,
            resource: part(b.buffer.raw(), b.offset, b.bytes),
        }));
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        });
        recorder.groups.insert(key, group.clone());
        group
    }

    /// Submits what is pending, followed by the copies that `after` encodes.
    pub(crate) fn flush(
        &self,
        after: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<wgpu::SubmissionIndex> {
        #[cfg(not(target_arch = "wasm32"))]
        self.end_uploads()?;
        let pending = std::mem::take(&mut self.recorder.borrow_mut().pending);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        self.encode(&mut encoder, &pending);
        after(&mut encoder);
        let submitted = self.queue.submit([encoder.finish()]);
        self.sweep();
        self.faults.check()?;
        match self.stamps.get() {
            Some(stamps) if !pending.is_empty() => self.account(stamps, &pending)?,
            _ => {}
        }
        Ok(submitted)
    }

    /// Encodes dispatches as one pass, with time stamps where the device was opened for them.
    fn encode(&self, encoder: &mut wgpu::CommandEncoder, dispatches: &[Dispatch]) {
        if dispatches.is_empty() {
            return;
        }
        let stamps = self.stamps.get();
        let mut pass = encoder.begin_compute_pass(&Default::default());
        if let Some(stamps) = stamps {
            stamps.mark(&mut pass, 0);
        }
        let mut marks = 0;
        let mut current = usize::MAX;
        for (place, dispatch) in (1..).zip(dispatches) {
            if dispatch.pipeline.id != current {
                pass.set_pipeline(&dispatch.pipeline.raw);
                current = dispatch.pipeline.id;
            }
            pass.set_bind_group(0, &dispatch.group, &[dispatch.params]);
            pass.dispatch_workgroups(dispatch.grid[0], dispatch.grid[1], 1);
            match stamps {
                Some(stamps) if stamps.every_dispatch() => stamps.mark(&mut pass, place),
                Some(stamps) => marks += stamps.mark_times(&mut pass, marks, dispatch.marks),
                None => {}
            }
        }
        match stamps {
            Some(stamps) if !stamps.every_dispatch() && marks == 0 => stamps.mark(&mut pass, 1),
            _ => {}
        }
        drop(pass);
        match stamps {
            // A batch is below the stamps.
            Some(s) if s.every_dispatch() => s.resolve(encoder, dispatches.len() as u32 + 1),
            Some(s) if marks > 0 => s.resolve_marks(encoder, marks),
            _ => {}
        }
    }

    /// Submits what is pending before the host changes a buffer that it may read.
    pub(crate) fn flush_pending(&self) -> Result<()> {
        let mut recorder = self.recorder.borrow_mut();
        // A step that writes from the host cannot be replayed from its dispatches alone.
        recorder.recording = None;
        let pending = !recorder.pending.is_empty();
        drop(recorder);
        if pending { self.flush(|_| ()).map(drop) } else { Ok(()) }
    }

    /// Forgets what refers to buffers that went away.
    fn sweep(&self) {
        let dropped = self.books.take_dropped();
        if dropped.is_empty() {
            return;
        }
        let mut recorder = self.recorder.borrow_mut();
        recorder.groups.retain(|(_, parts), _| !parts.iter().any(|(id, ..)| dropped.contains(id)));
        recorder.forget_steps();
    }

    /// Encodes a step, or repeats the dispatches that its first run recorded, and submits them.
    pub(crate) fn replay(
        &self,
        key: StepKey,
        encode: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let known = self.recorder.borrow().steps.get(&key).cloned();
        if let Some(step) = known {
            return self.repeat(key, &step);
        }
        self.recorder.borrow_mut().recording = Some(Vec::new());
        let outcome = encode();
        let recorded = self.recorder.borrow_mut().recording.take();
        outcome?;
        self.flush(|_| ())?;
        if let Some(step) = recorded {
            self.recorder.borrow_mut().steps.insert(key, step.into());
        }
        Ok(())
    }

    /// Submits a recorded step again.
    fn repeat(&self, key: StepKey, step: &Rc<[Dispatch]>) -> Result<()> {
        if self.stamps.get().is_some() {
            self.flush_pending()?;
            self.recorder.borrow_mut().pending.extend(step.iter().cloned());
            return self.flush(|_| ()).map(drop);
        }
        self.flush_pending()?;
        let ready = self.recorder.borrow_mut().ready.take();
        match ready.filter(|(of, _)| *of == key) {
            Some((_, parts)) => parts.into_iter().for_each(|part| {
                self.queue.submit([part]);
            }),
            None => self.submit_in_parts(step),
        }
        self.sweep();
        self.faults.check()?;
        // Encoding costs about as much as a short step runs, and the device is busy now.
        let mut recorder = self.recorder.borrow_mut();
        if recorder.steps.contains_key(&key) {
            let first = if step.len() < LONG { step.len() } else { FIRST_PART };
            let parts = [&step[..first], &step[first..]];
            let parts = parts.into_iter().filter(|part| !part.is_empty());
            recorder.ready = Some((key, parts.map(|part| self.commands(part)).collect()));
        }
        Ok(())
    }

    fn commands(&self, dispatches: &[Dispatch]) -> wgpu::CommandBuffer {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        self.encode(&mut encoder, dispatches);
        encoder.finish()
    }

    /// Submits a step in parts, so that the device starts on the first while the host encodes the next.
    fn submit_in_parts(&self, step: &[Dispatch]) {
        for part in step.chunks(PART) {
            self.queue.submit([self.commands(part)]);
        }
    }
}
