//! Turns tuned kernels off by name, for comparison and as a way back: `WHIPSNAKE_CUDA_OFF=wgmma,scan_chunk`. What changes
//! numbers is off and turned on the same way: `WHIPSNAKE_CUDA_ON=fp8`.

use std::sync::OnceLock;

fn list(variable: &str) -> Vec<String> {
    let list = std::env::var(variable).unwrap_or_default();
    list.split(',').map(|name| name.trim().to_string()).collect()
}

/// Whether the kernel of this name may run.
pub(crate) fn on(name: &str) -> bool {
    static OFF: OnceLock<Vec<String>> = OnceLock::new();
    !OFF.get_or_init(|| list("WHIPSNAKE_CUDA_OFF")).iter().any(|other| other == name)
}

/// Whether what changes numbers is asked for.
pub(crate) fn wanted(name: &str) -> bool {
    static ON: OnceLock<Vec<String>> = OnceLock::new();
    ON.get_or_init(|| list("WHIPSNAKE_CUDA_ON")).iter().any(|other| other == name)
}
