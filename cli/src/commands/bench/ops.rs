//! `whipsnake bench ops`: every op alone, at a published model's shapes.

use std::io::StdoutLock;

use whipsnake_cuda::bench::Row;

use crate::args::{BackendChoice, BenchArgs};
use crate::output::Output;
use crate::select;

/// Times the ops of the CUDA back end.
pub fn run(args: &BenchArgs, output: &mut Output<StdoutLock<'static>>) -> anyhow::Result<()> {
    anyhow::ensure!(
        matches!(args.backend.backend, BackendChoice::Cuda | BackendChoice::Auto),
        "ops are timed on CUDA only; use --backend cuda"
    );
    let cuda = select::cuda(&args.backend)?;
    let mut failed = Ok(());
    let filter = args.filter.as_deref().unwrap_or_default();
    let rows = whipsnake_cuda::bench::bench(&cuda, filter, &mut |row: &Row| {
        if failed.is_ok() {
            failed = output.text(&format!("{row}\n"));
        }
    })?;
    failed?;
    match &args.json {
        Some(path) => super::write(path, &serde_json::to_vec_pretty(&rows)?),
        None => Ok(()),
    }
}
