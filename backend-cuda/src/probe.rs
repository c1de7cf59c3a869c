//! What CUDA devices are there, and why one cannot be used. Never fails and never panics.

use crate::compile::Compiler;
use crate::driver;
use crate::images;
use cudarc::driver::{CudaContext, sys};
use serde::Serialize;

/// Oldest compute capability that the kernels are compiled for.
const OLDEST: (i32, i32) = (8, 0);

/// One candidate of the CUDA back end.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// What `--device` takes; 0 where there is no device.
    pub ordinal: usize,
    /// The device's name, or `cuda` where there is none.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Bytes of device memory.
    pub memory: u64,
    /// Bytes of it that are free.
    pub free: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// CUDA version of the driver, `13000` for 13.0.
    pub driver: i32,
    /// Where NVRTC was found.
    pub nvrtc: Option<String>,
    /// Why it cannot be used; `None` where it can.
    pub refused: Option<String>,
}

impl std::fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.memory > 0 {
            let (major, minor) = self.capability;
            writeln!(f, "[{}] {} (compute capability {major}.{minor})", self.ordinal, self.name)?;
            writeln!(
                f,
                "    {} MiB memory, {} MiB free, {} multiprocessors, driver for CUDA {}.{}",
                self.memory >> 20,
                self.free >> 20,
                self.multiprocessors,
                self.driver / 1000,
                self.driver % 1000 / 10
            )?;
        }
        match (&self.refused, &self.nvrtc) {
            (Some(why), _) => write!(f, "    rejected: {why}"),
            (None, _) if images::built_in(self.capability) => {
                write!(f, "    usable, kernels built in")
            }
            (None, Some(path)) => write!(f, "    usable, kernels compiled by {path}"),
            (None, None) => write!(f, "    usable"),
        }
    }
}

/// Every CUDA device, or one entry that says why there is none.
pub fn devices() -> Vec<DeviceReport> {
    if !driver::present() {
        return vec![refused(
            0,
            "no NVIDIA driver: libcuda cannot be loaded; install it, or use --backend wgpu",
        )];
    }
    let count = match CudaContext::device_count() {
        Ok(0) => return vec![refused(0, "the NVIDIA driver lists no device")],
        Err(error) => {
            return vec![refused(0, &format!("the NVIDIA driver does not start: {error}"))];
        }
        Ok(count) => usize::try_from(count).unwrap_or(0),
    };
    let nvrtc = Compiler::find();
    (0..count)
        .map(|ordinal| match report(ordinal) {
            Ok(mut report) => {
                match &nvrtc {
                    Err(_) if images::built_in(report.capability) => {}
                    Ok(compiler) => report.nvrtc = Some(compiler.path().display().to_string()),
                    Err(error) => report.refused = Some(error.to_string()),
                }
                if report.capability < OLDEST {
                    let (major, minor) = report.capability;
                    report.refused =
                        Some(format!("compute capability {major}.{minor}, want 8.0 or later"));
                }
                report
            }
            Err(error) => refused(ordinal, &format!("the device does not open: {error}")),
        })
        .collect()
}

fn refused(ordinal: usize, reason: &str) -> DeviceReport {
    DeviceReport {
        ordinal,
        name: "cuda".into(),
        capability: (0, 0),
        memory: 0,
        free: 0,
        multiprocessors: 0,
        driver: 0,
        nvrtc: None,
        refused: Some(reason.into()),
    }
}

fn report(ordinal: usize) -> Result<DeviceReport, cudarc::driver::DriverError> {
    let context = CudaContext::new(ordinal)?;
    let (free, total) = context.mem_get_info()?;
    let count = context
        .attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let mut driver = 0;
    // SAFETY: the driver is loaded and the target lives through the call.
    unsafe { sys::cuDriverGetVersion(&mut driver) }.result()?;
    Ok(DeviceReport {
        ordinal,
        name: context.name()?,
        capability: context.compute_capability()?,
        memory: total as u64,
        free: free as u64,
        multiprocessors: usize::try_from(count).unwrap_or(0),
        driver,
        nvrtc: None,
        refused: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_gets_a_reason() {
        let reports = devices();
        assert!(!reports.is_empty());
        if !driver::present() {
            let reason = reports[0].refused.as_deref();
            assert_eq!(
                reason,
                Some(
                    "no NVIDIA driver: libcuda cannot be loaded; install it, or use --backend wgpu"
                )
            );
        }
    }
}
