//! What each subcommand does, a file each.

mod bench;
mod chat;
mod devices;
mod generate;
mod logits;
mod perplexity;
mod plan;
mod selfcheck;

use crate::args::{Cli, Command};

/// Runs the subcommand that was asked for.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    let quiet = cli.verbosity.quiet;
    match cli.command {
        Command::Generate(args) => generate::run(&args, quiet),
        Command::Chat(args) => chat::run(&args, quiet),
        Command::Plan(args) => plan::run(&args),
        Command::Logits(args) => logits::run(&args, quiet),
        Command::Perplexity(args) => perplexity::run(&args, quiet),
        Command::Bench(args) => bench::run(&args, quiet),
        Command::Devices(args) => devices::run(&args),
        Command::Selfcheck(args) => selfcheck::run(&args, quiet),
    }
}
