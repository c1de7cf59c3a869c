//! The recurrence: a workgroup a (segment, head, block of channels), for prefill, decode and mixtures alike; without
//! barriers an invocation four channels.

use crate::Wgpu;
use crate::call::{Call, in_fours, residue, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::SsmScan;

/// Fours of the state that an invocation keeps in registers over many tokens: more lanes would read B and C more often.
const MOST_FOURS: usize = 8;
/// The same where a step has one token a sequence: the state is read and written in longer runs, by more invocations.
const FOURS_ONCE: usize = 2;
/// Bytes of workgroup memory that a kernel takes where the device has more than WebGPU's 16 KiB.
const LARGE: usize = 40 << 10;
/// Tokens staged at once, at most.
const MOST_TOKENS: usize = 24;

/// How the work of a head is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Invocations that share a channel's state.
    lanes: usize,
    /// Channels of a workgroup.
    channels: usize,
    /// Fours of the state an invocation.
    fours: usize,
    /// Tokens staged at once.
    tokens: usize,
    /// Whether no sequence has more than one token.
    once: bool,
}

impl Shape {
    /// For sequences of at most `longest` tokens and workgroup memory of `bytes`.
    fn of(state_size: usize, head_dim: usize, longest: usize, bytes: usize) -> Self {
        let vectors = state_size.div_ceil(4);
        let most = if longest == 1 { FOURS_ONCE } else { MOST_FOURS };
        let lanes = vectors.div_ceil(most).next_power_of_two().min(64);
        let fours = vectors.div_ceil(lanes);
        let channels = (128 / lanes).min(head_dim.next_power_of_two());
        // B and C, partial sums and x, decay and step of a token.
        let floats = 2 * 4 * lanes * fours + channels * (lanes + 1) + 2;
        let most = if longest == 1 { 1 } else { MOST_TOKENS };
        let tokens = (bytes / 4 / floats).clamp(1, most);
        Self { lanes, channels, fours, tokens, once: longest == 1 }
    }

    fn kernel(self, aligned: bool) -> Kernel {
        let constants = [
            ("LANES", self.lanes),
            ("CHANNELS", self.channels),
            ("FOURS", self.fours),
            ("TOKENS", self.tokens),
            ("ONCE", usize::from(self.once)),
            ("ALIGNED", usize::from(aligned)),
        ];
        // Each is at most 256.
        constants
            .into_iter()
            .fold(Kernel::new("ssm_scan"), |kernel, (name, n)| kernel.with(name, n as u32))
    }
}

/// Channels of a workgroup of the form without barriers.
const THREAD_CHANNELS: usize = 32;

/// The form without barriers: fours of the state that its invocations keep at a time must divide all.
fn thread_kernel(state_size: usize) -> Kernel {
    let vectors = state_size / 4;
    let fours =
        [4, 3, 2].into_iter().find(|&fours| vectors.is_multiple_of(fours as usize)).unwrap_or(1);
    Kernel::new("ssm_scan_thread").with("FOURS", fours)
}

pub(crate) fn kernels() -> Vec<Kernel> {
    let sizes = [(1, 1), (16, 64), (64, 64), (128, 64), (128, 80), (256, 64), (1024, 256)];
    let shapes = sizes
        .into_iter()
        .flat_map(|(state, head)| [1, 100].map(|longest| Shape::of(state, head, longest, SMALL)));
    let kernels = shapes.flat_map(|shape| [false, true].map(|aligned| shape.kernel(aligned)));
    kernels.chain([4, 16, 64, 128].map(thread_kernel)).collect()
}

/// WebGPU's default.
const SMALL: usize = 16 << 10;

/// Whether B, C and the state may be read in fours.
fn is_aligned(op: &SsmScan<Wgpu>) -> bool {
    let states = op.state_size.is_multiple_of(4) && op.state.stride().is_multiple_of(4);
    states && residue(&op.state).is_multiple_of(4) && in_fours(&op.b) && in_fours(&op.c)
}

pub(crate) fn encode(gpu: &Wgpu, op: &SsmScan<Wgpu>) -> Result<()> {
    want_f32("ssm_scan", &[&op.x, &op.b, &op.c, &op.dt, &op.out])?;
    let large = gpu.limits.max_compute_workgroup_storage_size as usize >= LARGE;
    let longest = op.segments.shape.longest;
    let shape = Shape::of(op.state_size, op.head_dim, longest, if large { LARGE } else { SMALL });
    let (heads, segments) = (op.heads(), op.segments.table.rows());
    let aligned = is_aligned(op);
    let (kernel, channels) = match gpu.variants.barrier_free() && aligned {
        true => (thread_kernel(op.state_size), THREAD_CHANNELS),
        false => (shape.kernel(aligned), shape.channels),
    };
    let blocks = op.head_dim.div_ceil(channels);
    let call = Call::new(kernel)
        .input(&op.x)
        .input(&op.b)
        .input(&op.c)
        .input(&op.dt)
        .input(&op.head_params)
        .output(&op.state)
        .input(&op.segments.table)
        .output(&op.out)
        .sizes([segments, heads, heads / op.groups(), op.head_dim, op.state_size, blocks])
        .floats(op.dt_limit.map(|limit| limit.min(f32::MAX)));
    gpu.dispatch(call, segments * heads * blocks)
}

#[cfg(test)]
mod tests {
    use super::{LARGE, SMALL, Shape};

    #[test]
    fn every_shape_fits_its_workgroup_memory() {
        for (state, most) in (1..=1024).flat_map(|state| [(state, SMALL), (state, LARGE)]) {
            for (head_dim, longest) in
                [1, 16, 63, 64, 80, 128, 256].into_iter().flat_map(|head| [(head, 1), (head, 9)])
            {
                let s = Shape::of(state, head_dim, longest, most);
                assert!(s.lanes * s.fours * 4 >= state, "{state}: {s:?}");
                assert!(s.lanes * s.channels <= 256, "{state}: {s:?}");
                let staged = 2 * 4 * s.tokens * s.lanes * s.fours;
                let rest = s.tokens * (s.channels * (s.lanes + 1) + 2);
                assert!((staged + rest) * 4 <= most, "{state} {head_dim}: {s:?}");
            }
        }
    }
}
