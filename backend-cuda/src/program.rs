//! What follows each other in a step of one row, gathered and run in one launch (`kernels/common_program.cu`).
//!
//! Ops add phases while a step is being encoded; whatever else reaches the stream first launches what has been gathered.

use crate::cuda::Cuda;
use crate::driver::{Block, Shape, Start};
use crate::kernels::Args;
use crate::memory::CudaBuffer;
use crate::ops::{CHOICE, Phase, Products};
use crate::switches::on;
use crate::view::{narrow, pointer};
use whipsnake_core::backend::Memory;
use whipsnake_core::batch::Segments;
use whipsnake_core::error::{Error, Result};

/// Threads of a block, bytes of its ring and of what phases place behind it: `THREADS`, `RING`, `AREA`.
const THREADS: u32 = 512;
const RING: u32 = 16 * 6 * 1152;
pub(crate) const AREA: u32 = 48 << 10;

/// Shared memory that the kernel has in any case, with some to spare.
const FIXED: u32 = 6 << 10;

/// Bytes of BF16 weights that are read as fast in a launch of their own.
const LARGE: u64 = 16 << 20;

/// Bytes of BF16 weights that always are read faster in a launch of their own: a head.
const HUGE: u64 = 256 << 20;

/// Phases before its own from which a phase's weights may be copied: they are known no earlier (`SLOTS`).
const MOST_LEAD: usize = 2;

/// The step being encoded.
#[derive(Default)]
pub(crate) struct Program {
    recording: bool,
    /// Whether products with NVFP4 weights have been gathered in this step.
    integers: bool,
    phases: Vec<Phase>,
    /// Where programs of this step lie on the device, how many of them this run has used, and their bytes where they are
    /// not there yet.
    places: Vec<CudaBuffer>,
    used: usize,
    texts: Vec<Vec<u8>>,
    /// The table of segments and that of rows that phases want, one of each for a program.
    segments: Option<[u64; 2]>,
    /// Counts of the blocks that meet.
    arrivals: Option<CudaBuffer>,
}

impl Program {
    /// The phases gathered so far.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// Whether phases may have these tables.
    pub fn takes(&mut self, segments: &Segments<Cuda>) -> bool {
        let tables = [pointer(&segments.table), pointer(&segments.places)];
        *self.segments.get_or_insert(tables) == tables
    }

    pub fn push(&mut self, phase: Phase) {
        self.integers |= phase.as_products().is_some_and(Products::integers);
        self.phases.push(phase);
    }

    /// Whether a phase of so many bytes of BF16 weights gains by it. Large ones come from memory as fast in launches of their
    /// own, and then only join where there are others; the largest never do.
    pub fn gains(&self, bytes: u64) -> bool {
        bytes <= LARGE || (self.integers && bytes <= HUGE)
    }

    /// The phases with what only their places among each other tell.
    fn finish(&mut self) -> Vec<Phase> {
        let mut phases = std::mem::take(&mut self.phases);
        let mut choice = None;
        for (index, phase) in phases.iter_mut().enumerate() {
            if phase.kind == CHOICE {
                choice = Some(index);
            }
            let known = match (phase.chosen(), choice) {
                (true, Some(choice)) => index - choice - 1,
                _ => MOST_LEAD,
            };
            phase.lead = narrow(known.min(MOST_LEAD));
            phase.meet &= u32::from(index > 0);
        }
        for index in 1..phases.len() {
            if phases[index].meet != 0 {
                let source = waits_for(&phases[..index], phases[index].kind);
                phases[source].arrive = 1;
            }
        }
        phases
    }
}

/// The last of the phases `before` one of a kind whose results it reads: a choice reads scores that come first, while what
/// meets the same rows again still runs.
fn waits_for(before: &[Phase], kind: u32) -> usize {
    let again = |phase: &Phase| phase.as_products().is_some_and(Products::again);
    let others = before.iter().rev().take_while(|phase| kind == CHOICE && again(phase)).count();
    (before.len() - 1).saturating_sub(others)
}

impl Cuda {
    /// Whether ops of a step may add phases now.
    pub(crate) fn gathers(&self) -> bool {
        self.program.borrow().recording
    }

    /// Begins to gather, where the device can run programs; `places` are those of an earlier run of the same step.
    pub(crate) fn begin_programs(&self, places: Vec<CudaBuffer>) {
        let room = RING + AREA + FIXED;
        let able = self.tuned() && on("program") && room <= self.most_shared();
        let mut program = self.program.borrow_mut();
        program.recording = able;
        program.integers = false;
        program.places = places;
        program.used = 0;
        program.texts.clear();
    }

    /// Ends to gather: where the step's programs lie, and their bytes where a capture could not write them.
    pub(crate) fn end_programs(
        &self,
        encoded: Result<()>,
    ) -> Result<(Vec<CudaBuffer>, Vec<Vec<u8>>)> {
        let flushed = encoded.and_then(|()| self.flush());
        let mut program = self.program.borrow_mut();
        program.recording = false;
        program.phases.clear();
        program.segments = None;
        flushed?;
        Ok((std::mem::take(&mut program.places), std::mem::take(&mut program.texts)))
    }

    /// Launches what has been gathered.
    pub(crate) fn flush(&self) -> Result<()> {
        if self.program.borrow().phases.is_empty() {
            return Ok(());
        }
        let phases = self.program.borrow_mut().finish();
        let [table, places] = self.program.borrow_mut().segments.take().unwrap_or_default();
        let text = bytemuck::cast_slice::<Phase, u8>(&phases).to_vec();
        let (place, arrivals) = self.place(&text)?;
        let mut args = Args::new();
        args.push(place).push(narrow(phases.len())).push(table).push(places).push(arrivals);
        let shape = Shape {
            grid: [narrow(self.multiprocessors()), 1, 1],
            threads: THREADS,
            shared: RING + AREA,
        };
        self.kernels().launch("common_program", "program", shape, &mut args, Start::Together)
    }

    /// Memory for the next program of the step with its bytes in it, and the counts.
    fn place(&self, text: &[u8]) -> Result<(u64, u64)> {
        let mut program = self.program.borrow_mut();
        if program.arrivals.is_none() {
            self.outside_capture("the first program")?;
            let counts = self.pool().allocate(8, Memory::Scratch, "counts of blocks")?;
            self.write_program(&counts, &[0; 8])?;
            program.arrivals = Some(counts);
        }
        let index = program.used;
        program.used += 1;
        if index == program.places.len() {
            self.outside_capture("another program")?;
            program.places.push(self.pool().allocate(text.len(), Memory::Scratch, "program")?);
        }
        let place = &program.places[index];
        if (place.bytes() as usize) < text.len() {
            return Err(Error::device("cuda: a step's program has grown since it ran first"));
        }
        let pointer = place.pointer();
        if self.capturing() {
            program.texts.push(text.to_vec());
        } else {
            self.write_program(place, text)?;
        }
        let arrivals = program.arrivals.as_ref().map_or(0, CudaBuffer::pointer);
        Ok((pointer, arrivals))
    }

    /// Copies a program to its place.
    pub(crate) fn write_program(&self, place: &CudaBuffer, text: &[u8]) -> Result<()> {
        let width = text.len();
        let block = Block { pointer: place.pointer(), pitch: width, width, rows: 1 };
        self.staging().upload(block, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{AGAIN, Choice, Unit};
    use bytemuck::Zeroable;

    fn products(meet: bool, chosen: bool) -> Phase {
        let mut products = Products::zeroed();
        products.unit[0] = Unit { chosen: u32::from(chosen), ..Unit::zeroed() };
        Phase::products(meet, products)
    }

    #[test]
    fn weights_of_chosen_experts_are_not_copied_before_the_choice() {
        let mut program = Program::default();
        program.push(products(true, false));
        let mut again = *products(false, false).as_products().unwrap();
        again.staged = AGAIN;
        program.push(Phase::products(false, again));
        program.push(Phase::choice(Choice::zeroed()));
        program.push(products(false, true));
        program.push(products(true, true));
        let phases = program.finish();
        let told: Vec<_> =
            phases.iter().map(|phase| (phase.meet, phase.arrive, phase.lead)).collect();
        // Nothing comes before the first phase that it would have to wait for, and the choice waits for it alone.
        assert_eq!(told, [(0, 1, 2), (0, 0, 2), (1, 0, 2), (0, 1, 0), (1, 0, 1)]);
    }

    #[test]
    fn large_bf16_weights_join_only_where_nvfp4_ones_came_before() {
        let mut program = Program::default();
        assert!(program.gains(LARGE) && !program.gains(LARGE + 1));
        program.push(products(true, false));
        assert!(!program.gains(LARGE + 1), "those were F32");
        let nvfp4 = Products { format: 3, ..Products::zeroed() };
        program.push(Phase::products(true, nvfp4));
        assert!(program.gains(LARGE + 1) && program.gains(HUGE));
        assert!(!program.gains(HUGE + 1), "such a weight never gains");
    }
}
