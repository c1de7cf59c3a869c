//! Which kernel variants run on a device; chosen once.

use crate::kernel::Kernel;
use crate::ops::{format_number, unit_fours};
use crate::probe::DeviceFeatures;
use whipsnake_core::weight::Format;

/// Who adds up the terms of one output where rows are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// One invocation, for any number of rows and in all ops that have such a form: software adapters pay for each
    /// workgroup that has a barrier.
    Invocation,
    /// 32 invocations that meet in workgroup memory.
    Workgroup,
    /// A subgroup, where all have one size.
    Subgroup,
}

/// What to run instead of a device's own choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Who adds up the terms of an output where rows are few.
    pub reduction: Option<Reduction>,
    /// Leaves cooperative matrices alone.
    pub no_cooperative: bool,
    /// Whether steps are queued ahead of what they give.
    pub ahead: Option<bool>,
}

/// How the work of a product for few rows is dealt out; the constants of `common_vec.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    /// Invocations that share `outs` outputs.
    lanes: usize,
    outs: usize,
    /// Invocations of a workgroup.
    threads: usize,
    /// Units of an output that an invocation has in flight.
    depth: usize,
    /// Units of x staged at once.
    chunk: usize,
}

/// What a device gives a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes of workgroup memory.
    pub bytes: usize,
    /// Invocations.
    pub invocations: usize,
}

impl Room {
    /// By a device's limits.
    pub fn of(limits: &wgpu::Limits) -> Self {
        // Both fit usize.
        let invocations =
            limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x);
        let bytes = limits.max_compute_workgroup_storage_size as usize;
        Self { bytes, invocations: invocations as usize }
    }
}

/// Invocations of a workgroup. Each stages x: large ones share it where outputs keep all multiprocessors busy.
const fn threads(outputs: usize) -> usize {
    if outputs < 8192 { 128 } else { 256 }
}

/// Workgroups that run at once on a large GPU, two on each of 132 multiprocessors: one more takes a turn of its own.
const ABREAST: usize = 264;
/// Subgroups of a workgroup, at least (fewer take longer to stage x) and at most.
const SUBGROUPS: [usize; 2] = [8, 22];

/// Columns of x staged at once, at most.
const STAGED: usize = 4096;

impl Team {
    /// For so many rows and outputs of a format on devices whose subgroups have `lanes` and whose workgroups have
    /// `bytes` for staging.
    fn of(format: Format, rows: usize, outputs: usize, lanes: usize, bytes: usize) -> Self {
        let fours = unit_fours(format);
        let outs = if outputs < 1024 { 1 } else { 4 };
        let threads = threads(outputs);
        // A unit of a narrow format keeps an invocation busy for as long as two of a wide one.
        let depth = if format == Format::Nvfp4 { 1 } else { 2 };
        let units = (bytes / (16 * rows * fours) - 1).min(STAGED / (4 * fours));
        let lanes = lanes.min(1 << (units / depth).ilog2());
        Self { lanes, outs, threads, depth, chunk: units / (lanes * depth) * lanes * depth }
    }

    /// The same for one row on a large GPU: workgroups of such a size that all run at once, with few outputs a team, so
    /// that many teams have loads in flight. Where outputs are too many for that, turns are many and even out.
    fn abreast(mut self, outputs: usize, invocations: usize) -> Self {
        let [least, most] = SUBGROUPS;
        let each = outputs.div_ceil(ABREAST).max(least);
        let outs = each.div_ceil(most);
        let threads = each.div_ceil(outs) * self.lanes;
        if outs <= 2 && threads <= invocations {
            (self.outs, self.threads) = (outs, threads);
        } else {
            self.depth = 1;
        }
        self
    }
}

/// A product for few rows.
pub(crate) struct FewRows {
    pub kernel: Kernel,
    /// Outputs of one of its workgroups.
    pub outputs: usize,
    /// Subgroups of one of its workgroups.
    pub subgroups: usize,
}

/// The variants of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variants {
    pub reduction: Reduction,
    /// Lanes of a subgroup, where all have one size that divides a workgroup of 128.
    subgroup: Option<u32>,
    /// Whether products of many rows run on cooperative matrices.
    pub cooperative: bool,
    /// Whether the device works beside the host, so that steps are queued ahead of what they give. A software adapter
    /// does not: a step that was queued in vain costs as much as any other.
    pub ahead: bool,
    room: Room,
}

/// Workgroup memory from which kernels stage more than WebGPU's defaults allow.
const LARGE: usize = 32 << 10;

impl Variants {
    /// The choice for a kind of device and what it offers; wishes override it where the device can.
    pub fn of(kind: &str, features: &DeviceFeatures, wishes: Wishes, room: Room) -> Self {
        let subgroup = features
            .subgroups
            .filter(|[min, max]| min == max && (4..=128).contains(min) && 128 % min == 0)
            .map(|[size, _]| size);
        let usual = match (kind, subgroup) {
            ("software", _) => Reduction::Invocation,
            (_, Some(_)) => Reduction::Subgroup,
            (_, None) => Reduction::Workgroup,
        };
        let reduction = match wishes.reduction {
            Some(Reduction::Subgroup) if subgroup.is_none() => Reduction::Workgroup,
            Some(wanted) => wanted,
            None => usual,
        };
        let able = features.f16 && features.cooperative_matrices && subgroup == Some(32);
        let cooperative = able && !wishes.no_cooperative;
        let ahead = wishes.ahead.unwrap_or(kind != "software");
        Self { reduction, subgroup, cooperative, ahead, room }
    }

    /// Whether teams are subgroups and have much workgroup memory.
    pub fn is_large(self) -> bool {
        self.reduction == Reduction::Subgroup && self.room.bytes >= LARGE
    }

    /// Lanes of a team, where teams are subgroups.
    pub fn lanes(self) -> Option<usize> {
        let size = self.subgroup.filter(|_| self.reduction == Reduction::Subgroup);
        // At most 128.
        size.map(|size| size as usize)
    }

    /// Whether ops run without barriers where they can.
    pub fn barrier_free(self) -> bool {
        self.reduction == Reduction::Invocation
    }

    /// The kernel of a product for few rows with `outputs` in all.
    pub fn vec_kernel(
        self,
        shader: &'static str,
        format: Format,
        [rows, outputs]: [usize; 2],
    ) -> FewRows {
        let rows = rows.next_power_of_two();
        // Each is at most 1,024.
        let with = |kernel: Kernel, constants: &[(&'static str, usize)]| {
            constants.iter().fold(kernel, |kernel, &(name, n)| kernel.with(name, n as u32))
        };
        let fours = unit_fours(format);
        let kernel = Kernel::new(shader).with("FORMAT", format_number(format));
        let kernel = with(kernel, &[("FOURS", fours), ("ROWS", rows)]);
        let lanes = self.lanes();
        // Beside what the choice of experts and sums of squares need.
        let large = self.room.bytes.saturating_sub(6 << 10).min(34 << 10);
        let bytes = if self.is_large() { large } else { 12_700 };
        let mut team = Team::of(format, rows, outputs, lanes.unwrap_or(32).min(32), bytes);
        let mut kernel = kernel;
        if rows == 1 && lanes == Some(32) && self.is_large() {
            team = team.abreast(outputs, self.room.invocations);
        }
        match lanes {
            Some(size) => kernel = with(kernel.entry("subgroup"), &[("SUBGROUP", size)]),
            None => team.threads = 128,
        }
        let Team { lanes, outs, threads, depth, chunk } = team;
        let constants = [
            ("LANES", lanes),
            ("OUTS", outs),
            ("THREADS", threads),
            ("DEPTH", depth),
            ("CHUNK", chunk),
        ];
        FewRows {
            kernel: with(kernel, &constants),
            outputs: threads / lanes * outs,
            subgroups: threads / self.lanes().unwrap_or(lanes),
        }
    }

    /// Names for `devices`.
    pub fn names(self) -> Vec<String> {
        if self.barrier_free() {
            return vec!["an invocation a block of outputs, without barriers, in f32".into()];
        }
        let how = match (self.reduction, self.subgroup) {
            (Reduction::Subgroup, Some(size)) => format!("a subgroup of {size} lanes"),
            _ => "32 invocations that meet in workgroup memory".into(),
        };
        let many = if self.cooperative { "cooperative matrices of f16" } else { "tiles in f32" };
        vec![format!("few rows by {how}"), format!("many rows by {many}")]
    }

    /// One of each reduction that has kernels for few rows, and one with much memory, for checks without a device.
    pub fn all() -> [Self; 3] {
        let of = |(reduction, bytes, invocations)| Self {
            reduction,
            subgroup: Some(32),
            cooperative: true,
            ahead: true,
            room: Room { bytes, invocations },
        };
        [
            (Reduction::Workgroup, 16 << 10, 256),
            (Reduction::Subgroup, 16 << 10, 256),
            (Reduction::Subgroup, 48 << 10, 1024),
        ]
        .map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { bytes: 16 << 10, invocations: 256 };

    fn features(f16: bool, subgroups: Option<[u32; 2]>) -> DeviceFeatures {
        DeviceFeatures {
            f16,
            subgroups,
            cooperative_matrices: true,
            timestamps: false,
            integer_dot: true,
        }
    }

    fn of(kind: &str, subgroups: Option<[u32; 2]>, reduction: Option<Reduction>) -> Reduction {
        let wishes = Wishes { reduction, ..Wishes::default() };
        Variants::of(kind, &features(false, subgroups), wishes, ROOM).reduction
    }

    #[test]
    fn cooperative_matrices_want_f16_and_subgroups_of_32() {
        let cooperative = |features: &DeviceFeatures, wishes| {
            Variants::of("discrete", features, wishes, ROOM).cooperative
        };
        let offered = features(true, Some([32, 32]));
        assert!(cooperative(&offered, Wishes::default()));
        assert!(!cooperative(&offered, Wishes { no_cooperative: true, ..Wishes::default() }));
        assert!(!cooperative(&features(false, Some([32, 32])), Wishes::default()));
        assert!(!cooperative(&features(true, Some([64, 64])), Wishes::default()));
    }

    #[test]
    fn subgroups_are_used_only_where_all_have_one_size() {
        assert_eq!(of("discrete", Some([32, 32]), None), Reduction::Subgroup);
        assert_eq!(of("integrated", Some([8, 32]), None), Reduction::Workgroup);
        assert_eq!(of("discrete", None, None), Reduction::Workgroup);
        assert_eq!(of("software", Some([8, 8]), None), Reduction::Invocation);
    }

    #[test]
    fn a_wish_is_met_where_the_device_can() {
        assert_eq!(of("software", Some([8, 8]), Some(Reduction::Subgroup)), Reduction::Subgroup);
        assert_eq!(of("discrete", None, Some(Reduction::Subgroup)), Reduction::Workgroup);
    }

    #[test]
    fn one_row_fills_a_large_gpu_once_or_many_times() {
        let [.., large] = Variants::all();
        for outputs in [256, 1856, 2688, 3712, 4096, 10304, 11136, 131_072] {
            let kernel = large.vec_kernel("norm_matmul", Format::Nvfp4, [1, outputs]);
            let workgroups = outputs.div_ceil(kernel.outputs);
            assert!(workgroups <= ABREAST || kernel.outputs == 32, "{outputs}: {workgroups}");
            assert!(kernel.subgroups <= SUBGROUPS[1], "{outputs}");
        }
    }

    #[test]
    fn every_team_stages_within_its_memory() {
        for format in Format::ALL {
            for (rows, outputs) in [1, 2, 4, 8].into_iter().flat_map(|r| [(r, 1), (r, 9000)]) {
                for (lanes, bytes) in [(4, 12_700), (8, 12_700), (32, 12_700), (32, 34 << 10)] {
                    let t = Team::of(format, rows, outputs, lanes, bytes);
                    assert!(t.chunk > 0 && t.chunk.is_multiple_of(t.lanes * t.depth), "{t:?}");
                    assert!(t.chunk.is_multiple_of(2), "{t:?}");
                    let staged = 16 * rows * unit_fours(format) * (t.chunk + 1);
                    assert!(staged <= bytes && t.threads.is_multiple_of(t.lanes), "{t:?}");
                }
            }
        }
    }
}
