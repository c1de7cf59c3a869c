//! `whipsnake bench ops`: every op alone, at a published model's shapes.

use std::fmt::Display;
use std::io::StdoutLock;

use serde::Serialize;
use whipsnake_wgpu::{Options, Timed, Wgpu};

use crate::args::{BackendChoice, BenchArgs};
use crate::output::Output;
use crate::select;

/// Times the ops of a GPU back end.
pub fn run(args: &BenchArgs, output: &mut Output<StdoutLock<'static>>) -> anyhow::Result<()> {
    let filter = args.filter.as_deref().unwrap_or_default();
    let mut lines = Lines { output, failed: Ok(()) };
    match args.backend.backend {
        BackendChoice::Cpu => anyhow::bail!("ops are timed on GPUs; use --backend cuda or wgpu"),
        BackendChoice::Wgpu => {
            let options = Options { timed: Timed::Calls, ..select::wgpu_options(&args.backend)? };
            let gpu = Wgpu::open(&options)?;
            lines.print(gpu.report());
            let rows = whipsnake_wgpu::bench::bench(&gpu, filter, &mut |row| lines.print(row))?;
            lines.end(args, &rows)
        }
        BackendChoice::Cuda | BackendChoice::Auto => {
            let cuda = select::cuda(&args.backend)?;
            let rows = whipsnake_cuda::bench::bench(&cuda, filter, &mut |row| lines.print(row))?;
            lines.end(args, &rows)
        }
    }
}

/// Prints as rows come; the first failure is kept for the end.
struct Lines<'a> {
    output: &'a mut Output<StdoutLock<'static>>,
    failed: anyhow::Result<()>,
}

impl Lines<'_> {
    fn print(&mut self, line: impl Display) {
        if self.failed.is_ok() {
            self.failed = self.output.text(&format!("{line}\n"));
        }
    }

    fn end(self, args: &BenchArgs, rows: &impl Serialize) -> anyhow::Result<()> {
        self.failed?;
        match &args.json {
            Some(path) => super::write(path, &serde_json::to_vec_pretty(rows)?),
            None => Ok(()),
        }
    }
}
