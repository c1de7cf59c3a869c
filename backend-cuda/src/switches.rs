//! Turns tuned kernels off by name, for comparison and as a way back: `WHIPSNAKE_CUDA_OFF=wgmma,scan_chunk`.

use std::sync::OnceLock;

/// Whether the kernel of this name may run.
pub(crate) fn on(name: &str) -> bool {
    static OFF: OnceLock<Vec<String>> = OnceLock::new();
    let off = OFF.get_or_init(|| {
        let list = std::env::var("WHIPSNAKE_CUDA_OFF").unwrap_or_default();
        list.split(',').map(|name| name.trim().to_string()).collect()
    });
    !off.iter().any(|other| other == name)
}
