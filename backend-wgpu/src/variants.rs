//! Which kernel variants run on a device; chosen once.

use crate::kernel::Kernel;
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
}

/// Invocations that share how many outputs. Many outputs keep a device busy with small teams, whose elements of x lie
/// close together; f32 weights read x in order with any team.
const fn team(format: Format, outputs: usize) -> (u32, u32) {
    match (format, outputs) {
        (Format::F32, ..2048) => (32, 1),
        (Format::F32, _) => (32, 2),
        (_, ..2048) => (32, 1),
        (_, ..8192) => (16, 2),
        _ => (8, 2),
    }
}

/// The variants of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variants {
    pub reduction: Reduction,
    /// Lanes of a subgroup, where all have one size that divides a workgroup of 128.
    subgroup: Option<u32>,
    /// Whether products of many rows run on cooperative matrices.
    pub cooperative: bool,
}

impl Variants {
    /// The choice for a kind of device and what it offers; wishes override it where the device can.
    pub fn of(kind: &str, features: &DeviceFeatures, wishes: Wishes) -> Self {
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
        Self { reduction, subgroup, cooperative: able && !wishes.no_cooperative }
    }

    /// Whether ops run without barriers where they can.
    pub fn barrier_free(self) -> bool {
        self.reduction == Reduction::Invocation
    }

    /// The kernel of a product for few rows with `outputs` in all, and the outputs of one of its workgroups.
    pub fn vec_kernel(
        self,
        shader: &'static str,
        format: Format,
        outputs: usize,
    ) -> (Kernel, usize) {
        let kernel = Kernel::new(shader);
        let (lanes, outs) = team(format, outputs);
        let (kernel, lanes) = match (self.reduction, self.subgroup) {
            (Reduction::Subgroup, Some(size)) => {
                (kernel.entry("subgroup").with("SUBGROUP", size), lanes.min(size))
            }
            _ => (kernel, lanes),
        };
        // At most 32.
        let width = (128 / lanes * outs) as usize;
        (kernel.with("LANES", lanes).with("OUTS", outs), width)
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

    /// One of each reduction that has kernels for few rows, for checks without a device.
    pub fn all() -> [Self; 2] {
        [Reduction::Workgroup, Reduction::Subgroup].map(|reduction| Self {
            reduction,
            subgroup: Some(32),
            cooperative: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        Variants::of(kind, &features(false, subgroups), wishes).reduction
    }

    #[test]
    fn cooperative_matrices_want_f16_and_subgroups_of_32() {
        let cooperative = |features: &DeviceFeatures, wishes| {
            Variants::of("discrete", features, wishes).cooperative
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
}
