//! Which kernel variants run on a device; chosen once.

use crate::probe::DeviceFeatures;

/// The variants of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variants {
    /// Kernels without barriers: software adapters pay for each workgroup that has one.
    pub barrier_free: bool,
    /// Reductions by subgroup operations, where every subgroup has at least 4 lanes.
    pub subgroups: bool,
}

impl Variants {
    /// The choice for a kind of device and what it offers.
    pub fn of(kind: &str, features: &DeviceFeatures) -> Self {
        let software = kind == "software";
        let large = features.subgroups.is_some_and(|[min, _]| min >= 4);
        Self { barrier_free: software, subgroups: large && !software }
    }

    /// Names for `devices`.
    pub fn names(self) -> Vec<String> {
        let matmul = match self {
            Self { barrier_free: true, .. } => "matmul_thread",
            Self { subgroups: true, .. } => "matmul_vec subgroups",
            _ => "matmul_vec",
        };
        vec![matmul.into(), "matmul_tile".into(), "ssm_scan".into(), "attention".into()]
    }
}
