//! Which kernel variants run on a device; chosen once.

use crate::kernel::Kernel;
use crate::probe::DeviceFeatures;

/// Who adds up the terms of one output where rows are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// One invocation, without barriers: software adapters pay for each workgroup that has one.
    Invocation,
    /// 32 invocations that meet in workgroup memory.
    Workgroup,
    /// A subgroup, where all have one size.
    Subgroup,
}

/// The variants of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variants {
    pub reduction: Reduction,
    /// Lanes of a subgroup, where all have one size that divides a workgroup of 128.
    subgroup: Option<u32>,
}

impl Variants {
    /// The choice for a kind of device and what it offers; `wanted` overrides it where the device can.
    pub fn of(kind: &str, features: &DeviceFeatures, wanted: Option<Reduction>) -> Self {
        let subgroup = features
            .subgroups
            .filter(|[min, max]| min == max && (4..=128).contains(min) && 128 % min == 0)
            .map(|[size, _]| size);
        let usual = match (kind, subgroup) {
            ("software", _) => Reduction::Invocation,
            (_, Some(_)) => Reduction::Subgroup,
            (_, None) => Reduction::Workgroup,
        };
        let reduction = match wanted {
            Some(Reduction::Subgroup) if subgroup.is_none() => Reduction::Workgroup,
            Some(wanted) => wanted,
            None => usual,
        };
        Self { reduction, subgroup }
    }

    /// The kernel for few rows of a family of three, and the outputs of one of its workgroups.
    pub fn vec_kernel(self, family: Family) -> (Kernel, usize) {
        match (self.reduction, self.subgroup) {
            (Reduction::Invocation, _) => (Kernel::new(family.name).entry("thread"), 64),
            (Reduction::Subgroup, Some(size)) => {
                let kernel = Kernel::new(family.subgroup).entry("subgroup").with("SUBGROUP", size);
                // At most 32.
                (kernel, (128 / size) as usize)
            }
            _ => (Kernel::new(family.name), 4),
        }
    }

    /// Names for `devices`.
    pub fn names(self) -> Vec<String> {
        let how = match (self.reduction, self.subgroup) {
            (Reduction::Invocation, _) => "an invocation an output".into(),
            (Reduction::Subgroup, Some(size)) => format!("a subgroup of {size} an output"),
            _ => "32 invocations an output".into(),
        };
        ["matmul_vec", "norm_matmul", "moe_matmul_vec"]
            .map(|name| format!("{name} by {how}"))
            .into()
    }

    /// One of each reduction, for checks without a device.
    pub fn all() -> [Self; 3] {
        [Reduction::Invocation, Reduction::Workgroup, Reduction::Subgroup]
            .map(|reduction| Self { reduction, subgroup: Some(32) })
    }
}

/// The shaders of one product for few rows.
#[derive(Clone, Copy)]
pub(crate) struct Family {
    /// With entries `main` and `thread`.
    pub name: &'static str,
    /// With entry `subgroup`.
    pub subgroup: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, subgroups: Option<[u32; 2]>, wanted: Option<Reduction>) -> Reduction {
        let features = DeviceFeatures {
            f16: false,
            subgroups,
            cooperative_matrices: false,
            timestamps: false,
            integer_dot: true,
        };
        Variants::of(kind, &features, wanted).reduction
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
