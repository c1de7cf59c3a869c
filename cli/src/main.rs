//! The `whipsnake` program.

use std::process::ExitCode;

use clap::Parser;
use whipsnake::args::Cli;
use whipsnake::{commands, failure};

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.verbosity.start_log();
    failure::exit(commands::run(cli))
}
