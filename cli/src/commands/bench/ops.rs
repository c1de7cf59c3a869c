//! `whipsnake bench ops`: every op alone, at a published model's shapes.

use std::io::StdoutLock;

use whipsnake_core::bench::{Row, Timed, bench};
use whipsnake_wgpu::{Options, Timed as Timing, Wgpu};

use crate::args::{BackendChoice, BenchArgs};
use crate::output::Output;
use crate::select;

/// Times the ops of a GPU back end.
pub fn run(args: &BenchArgs, output: &mut Output<StdoutLock<'static>>) -> anyhow::Result<()> {
    match args.backend.backend {
        BackendChoice::Cpu => anyhow::bail!("ops are timed on GPUs; use --backend cuda or wgpu"),
        BackendChoice::Wgpu => {
            let options = Options { timed: Timing::Calls, ..select::wgpu_options(&args.backend)? };
            let gpu = Wgpu::open(&options)?;
            output.text(&format!("{}\n", gpu.report()))?;
            time(&gpu, args, output)
        }
        BackendChoice::Cuda | BackendChoice::Auto => {
            time(&select::cuda(&args.backend)?, args, output)
        }
    }
}

fn time<B: Timed>(
    device: &B,
    args: &BenchArgs,
    output: &mut Output<StdoutLock<'static>>,
) -> anyhow::Result<()> {
    let filter = args.filter.as_deref().unwrap_or_default();
    let mut printed = Ok(());
    let mut print = |row: &Row| {
        if printed.is_ok() {
            printed = output.text(&format!("{row}\n"));
        }
    };
    let rows = pollster::block_on(bench(device, filter, &mut print))?;
    printed?;
    match &args.json {
        Some(path) => super::write(path, &serde_json::to_vec_pretty(&rows)?),
        None => Ok(()),
    }
}
