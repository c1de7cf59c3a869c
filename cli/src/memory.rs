//! What the process itself holds, as the system counts it.

use serde::{Deserialize, Serialize};

/// Memory of this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Resident now.
    pub resident: u64,
    /// Most that was resident at once.
    pub peak: u64,
}

/// Reads it where the system tells (Linux).
pub fn process_memory() -> Option<ProcessMemory> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Bytes that programs can still take, where the system tells (Linux).
pub fn available_memory() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

fn parse(status: &str) -> Option<ProcessMemory> {
    Some(ProcessMemory { resident: field(status, "VmRSS:")?, peak: field(status, "VmHWM:")? })
}

/// A line `NAME   123 kB`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_by_name() {
        let status = "Name:\tx\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n";
        assert_eq!(parse(status), Some(ProcessMemory { resident: 10 << 20, peak: 20 << 20 }));
        assert_eq!(parse("Name:\tx\n"), None);
    }
}
