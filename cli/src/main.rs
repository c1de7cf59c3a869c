//! The `whipsnake` program.

use std::process::ExitCode;

use clap::Parser;
use whipsnake::args::Cli;
use whipsnake::failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.verbosity.start_log();
    failure::exit(Err(anyhow::anyhow!("this build holds no engine to run models with")))
}
