//! `whipsnake devices`: every candidate with its limits, and why the others are left out.

use serde::Serialize;

use crate::args::DevicesArgs;
use crate::memory::available_memory;
use crate::output::Output;

/// Everything that could run a model here.
#[derive(Debug, Serialize)]
struct Report {
    cuda: Vec<whipsnake_cuda::DeviceReport>,
    wgpu: Vec<whipsnake_wgpu::DeviceReport>,
    cpu: CpuReport,
}

#[derive(Debug, Serialize)]
struct CpuReport {
    threads: usize,
    /// Bytes that programs can still take, where the system tells.
    available_memory: Option<u64>,
}

/// Runs the command.
pub fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let report = Report {
        cuda: whipsnake_cuda::devices(),
        wgpu: whipsnake_wgpu::devices(),
        cpu: CpuReport {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            available_memory: available_memory(),
        },
    };
    let mut output = Output::stdout();
    if args.json { output.json(&report) } else { output.text(&text(&report)) }
}

fn text(report: &Report) -> String {
    let mut text = String::from("cuda\n");
    for device in &report.cuda {
        text.push_str(&format!("{device}\n"));
    }
    text.push_str("wgpu\n");
    if report.wgpu.is_empty() {
        text.push_str("    no adapter: no Vulkan, Metal or DX12 driver is installed\n");
    }
    for device in &report.wgpu {
        text.push_str(&format!("{device}\n"));
    }
    let memory = report.cpu.available_memory.map_or("unknown".into(), whipsnake_core::plan::bytes);
    text.push_str(&format!(
        "cpu\n    {} threads, {memory} free; always usable, the last resort\n",
        report.cpu.threads
    ));
    text
}
