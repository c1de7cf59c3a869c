//! The command line: every subcommand, its options and its help.

mod bench;
mod commands;
mod groups;
mod parse;

use clap::{Args, Parser, Subcommand};

pub use bench::{BenchArgs, BenchSubject, Ceilings};
pub use commands::{
    ChatArgs, ContextArgs, DevicesArgs, GenerateArgs, LogitsArgs, PerplexityArgs, PlanArgs,
    SelfcheckArgs,
};
pub use groups::{BackendArgs, BackendChoice, Kv, ModelArgs, Precision, SamplingArgs, StateType};
pub use parse::{LogitBias, TemplateArg};

const ABOUT: &str = "Run hybrid state-space language models on CUDA, any other GPU, or the CPU";

const EXAMPLES: &str = "\
Examples:
  whipsnake generate \"Once upon a time\"        the model inside the program writes on
  whipsnake chat --model ./my-model            talk with a model from a folder
  whipsnake plan --model owner/name            will it fit? how much memory goes where?
  whipsnake devices                            what can run here, and why not the rest";

/// What was asked for.
#[derive(Clone, Debug, Parser)]
#[command(name = "whipsnake", version, about = ABOUT, after_help = EXAMPLES)]
#[command(max_term_width = 100, propagate_version = true, subcommand_required = true)]
#[command(arg_required_else_help = true)]
pub struct Cli {
    /// How much is told on standard error.
    #[command(flatten)]
    pub verbosity: Verbosity,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How much is told on standard error.
#[derive(Clone, Debug, Args)]
pub struct Verbosity {
    /// Tell more on standard error: -v what is done, -vv every detail
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Tell nothing on standard error but errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

impl Verbosity {
    /// The log filter that stands for it.
    pub fn filter(&self) -> &'static str {
        match (self.quiet, self.verbose) {
            (true, _) => "error",
            (false, 0) => "warn",
            (false, 1) => {
                "warn,whipsnake=info,whipsnake_core=info,whipsnake_cuda=info,whipsnake_wgpu=info"
            }
            (false, _) => {
                "info,whipsnake=trace,whipsnake_core=trace,whipsnake_cuda=trace,whipsnake_wgpu=trace"
            }
        }
    }

    /// Sends the log to standard error; `RUST_LOG` has the last word.
    pub fn start_log(&self) {
        use tracing_subscriber::EnvFilter;
        let filter = EnvFilter::try_from_default_env();
        let filter = filter.unwrap_or_else(|_| EnvFilter::new(self.filter()));
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        log.with_timer(tracing_subscriber::fmt::time::uptime()).init();
    }
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Write on from a prompt
    Generate(GenerateArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Tell the memory that a model takes, tensor by tensor, before it is loaded
    Plan(PlanArgs),
    /// Run given tokens and print the logits
    Logits(LogitsArgs),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Measure prefill and decode speed
    Bench(BenchArgs),
    /// List the devices, their limits, and why those that are left out are left out
    Devices(DevicesArgs),
    /// Check a back end against the reference arithmetic
    Selfcheck(SelfcheckArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_shows_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples:\n  whipsnake "), "{}", command.get_name());
        }
    }

    #[test]
    fn examples_in_the_help_are_valid() {
        let root = Cli::command();
        let all = root.get_subcommands().chain([&root]);
        for help in all.filter_map(|command| command.get_after_help()) {
            for line in
                help.to_string().lines().filter_map(|line| line.strip_prefix("  whipsnake "))
            {
                // Two or more blanks set off what the example does.
                let line = line.split("  ").next().unwrap();
                let words = split_quoted(line);
                let words = ["whipsnake".to_owned()].into_iter().chain(words);
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    /// Splits at blanks, but not inside double quotes.
    fn split_quoted(line: &str) -> Vec<String> {
        let parts = line.split('"').enumerate();
        let words = parts.flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    #[test]
    fn quiet_and_verbose_exclude_each_other() {
        let parse = |words: &[&str]| Cli::try_parse_from(words);
        assert!(parse(&["whipsnake", "-q", "-v", "devices"]).is_err());
        let cli = parse(&["whipsnake", "devices", "-vv"]).unwrap();
        assert!(cli.verbosity.filter().contains("trace"));
        let cli = parse(&["whipsnake", "-q", "devices"]).unwrap();
        assert_eq!(cli.verbosity.filter(), "error");
    }
}
