//! The options of each subcommand.

use std::path::PathBuf;

use clap::Args;

use super::groups::{BackendArgs, ModelArgs, SamplingArgs};
use super::parse::{self, TemplateArg};

const GENERATE_EXAMPLES: &str = "\
Examples:
  whipsnake generate \"Once upon a time\" --max-tokens 200
  whipsnake generate --model owner/name --temperature 0.7 --top-p 0.9 --seed 1 \"The sea\"
  whipsnake generate - --greedy --stop END       reads the prompt from standard input
  whipsnake generate --batch prompts.txt --json  one prompt a line, one event a line";

/// `whipsnake generate`.
#[derive(Clone, Debug, Args)]
#[command(after_help = GENERATE_EXAMPLES)]
pub struct GenerateArgs {
    /// Text to write on from, as it is, without a chat template; `-` reads standard input
    #[arg(required_unless_present = "batch", conflicts_with = "batch")]
    pub prompt: Option<String>,
    /// Run every prompt of a file at once: one a line; in a .jsonl file each line is a JSON
    /// string or an object with a `prompt`
    #[arg(long, value_name = "FILE")]
    pub batch: Option<PathBuf>,
    /// Stop after this many tokens
    #[arg(short = 'n', long, value_name = "N", default_value = "256", value_parser = parse::count)]
    pub max_tokens: usize,
    /// Show the log-probabilities of each token and its N likeliest rivals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=20))]
    pub logprobs: Option<u32>,
    /// Print JSON events, one a line
    #[arg(long)]
    pub json: bool,
    /// How much of a long prompt is run at once.
    #[command(flatten)]
    pub context: ContextArgs,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where to run.
    #[command(flatten)]
    pub backend: BackendArgs,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Sizes that memory and speed depend on.
#[derive(Clone, Debug, Default, Args)]
pub struct ContextArgs {
    /// Most tokens of prompt and answer together [default: what the model allows]
    #[arg(long, value_name = "TOKENS", value_parser = parse::count)]
    pub context: Option<usize>,
    /// Most prompt tokens in one step [default: what suits the back end]
    #[arg(long, value_name = "TOKENS", value_parser = parse::count)]
    pub prefill_chunk: Option<usize>,
}

const CHAT_EXAMPLES: &str = "\
Examples:
  whipsnake chat
  whipsnake chat --model owner/name --system \"Answer in one sentence.\"
  whipsnake chat --model owner/name --no-think --temperature 0.6";

/// `whipsnake chat`.
#[derive(Clone, Debug, Args)]
#[command(after_help = CHAT_EXAMPLES)]
pub struct ChatArgs {
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Let the model reason before it answers (the template's `enable_thinking`)
    #[arg(long, conflicts_with = "no_think")]
    pub think: bool,
    /// Answer without reasoning first
    #[arg(long)]
    pub no_think: bool,
    /// Give the chat template a value, JSON or text; can be given many times
    #[arg(long, value_name = "KEY=VALUE")]
    pub template_arg: Vec<TemplateArg>,
    /// Stop an answer after this many tokens
    #[arg(short = 'n', long, value_name = "N", default_value = "2048", value_parser = parse::count)]
    pub max_tokens: usize,
    /// How much of a long prompt is run at once.
    #[command(flatten)]
    pub context: ContextArgs,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where to run.
    #[command(flatten)]
    pub backend: BackendArgs,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

impl ChatArgs {
    /// The template's `enable_thinking`, where the user said anything about it.
    pub fn thinking(&self) -> Option<bool> {
        (self.think || self.no_think).then_some(self.think)
    }
}

const PLAN_EXAMPLES: &str = "\
Examples:
  whipsnake plan --model ./my-model
  whipsnake plan --model owner/name --context 131072 --slots 8 --backend cuda
  whipsnake plan --geometry nemotron-3-nano-nvfp4 --tensors";

/// `whipsnake plan`.
#[derive(Clone, Debug, Args)]
#[command(after_help = PLAN_EXAMPLES)]
pub struct PlanArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Plan a known model from its shapes alone, without its files
    #[arg(long, value_name = "NAME", conflicts_with = "model", value_parser = parse::non_empty)]
    pub geometry: Option<String>,
    /// Tokens of context for each sequence [default: what the model allows]
    #[arg(long, value_name = "TOKENS", value_parser = parse::count)]
    pub context: Option<usize>,
    /// Sequences at the same time
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse::count)]
    pub slots: usize,
    /// Price F16 and BF16 weights as f32, for comparing with programs that widen them
    #[arg(long)]
    pub widen: bool,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where to run.
    #[command(flatten)]
    pub backend: BackendArgs,
}

const LOGITS_EXAMPLES: &str = "\
Examples:
  whipsnake logits --tokens 1,2,3 --json
  whipsnake logits --model ./my-model --tokens 1,2,3 --split 2,1 --rows 0,2 --greedy 16 --json";

/// `whipsnake logits`.
#[derive(Clone, Debug, Args)]
#[command(after_help = LOGITS_EXAMPLES)]
pub struct LogitsArgs {
    /// Token ids of the prompt
    #[arg(long, value_name = "ID,ID,...", required = true, value_delimiter = ',')]
    #[arg(value_parser = parse::item)]
    pub tokens: Vec<u32>,
    /// Feed the prompt in chunks of these lengths [default: all at once]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = parse::count)]
    pub split: Vec<usize>,
    /// Print all logits of these rows of the prompt, counted from 0
    #[arg(long, value_name = "ROW,ROW,...", value_delimiter = ',', value_parser = parse::item)]
    pub rows: Vec<u32>,
    /// Then write this many tokens, each the likeliest
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub greedy: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where to run.
    #[command(flatten)]
    pub backend: BackendArgs,
}

impl LogitsArgs {
    /// The lengths of the chunks, which must cover the prompt exactly.
    pub fn chunks(&self) -> anyhow::Result<Vec<usize>> {
        let tokens = self.tokens.len();
        if self.split.is_empty() {
            return Ok(vec![tokens]);
        }
        let sum = self.split.iter().fold(0usize, |sum, &length| sum.saturating_add(length));
        if sum != tokens {
            anyhow::bail!("--split adds up to {sum}, want {tokens} (the number of --tokens)");
        }
        Ok(self.split.clone())
    }

    /// The rows to print, all of which must be in the prompt.
    pub fn checked_rows(&self) -> anyhow::Result<Vec<usize>> {
        let tokens = self.tokens.len();
        let row = |&row: &u32| match usize::try_from(row) {
            Ok(row) if row < tokens => Ok(row),
            _ => Err(anyhow::anyhow!("--rows: there is no row {row}, want 0 to {}", tokens - 1)),
        };
        self.rows.iter().map(row).collect()
    }
}

const PERPLEXITY_EXAMPLES: &str = "\
Examples:
  whipsnake perplexity --file book.txt
  whipsnake perplexity --model owner/name --file book.txt --window 4096 --json";

/// `whipsnake perplexity`.
#[derive(Clone, Debug, Args)]
#[command(after_help = PERPLEXITY_EXAMPLES)]
pub struct PerplexityArgs {
    /// Text to measure on
    #[arg(short, long, value_name = "TEXT")]
    pub file: PathBuf,
    /// Tokens in one step; the state is carried from one to the next
    #[arg(long, value_name = "TOKENS", default_value = "2048", value_parser = parse::count)]
    pub window: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where to run.
    #[command(flatten)]
    pub backend: BackendArgs,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  whipsnake bench
  whipsnake bench --model owner/name --prefill 512,4096 --decode 256 --repeat 5
  whipsnake bench --synthetic nemotron-3-nano-nvfp4 --json result.json";

/// `whipsnake bench`.
#[derive(Clone, Debug, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Measure a known model's shapes with made-up weights
    #[arg(long, value_name = "GEOMETRY", conflicts_with = "model")]
    #[arg(value_parser = parse::non_empty)]
    pub synthetic: Option<String>,
    /// Prompt lengths to measure
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "512")]
    #[arg(value_parser = parse::count)]
    pub prefill: Vec<usize>,
    /// Sequences that run together
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = parse::count)]
    pub sequences: Vec<usize>,
    /// Most prompt tokens in one step [default: what suits the back end]
    #[arg(long, value_name = "TOKENS", value_parser = parse::count)]
    pub prefill_chunk: Option<usize>,
    /// Tokens to write after each prompt
    #[arg(long, value_name = "N", default_value = "128", value_parser = parse::count)]
    pub decode: usize,
    /// Measure this many times and tell the median
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse::count)]
    pub repeat: usize,
    /// Time single ops of wgpu at a published model's shapes instead: those whose name contains FILTER
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "")]
    pub ops: Option<String>,
    /// Write the figures to a JSON file as well
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where to run.
    #[command(flatten)]
    pub backend: BackendArgs,
}

const DEVICES_EXAMPLES: &str = "\
Examples:
  whipsnake devices
  whipsnake devices --json";

/// `whipsnake devices`.
#[derive(Clone, Debug, Args)]
#[command(after_help = DEVICES_EXAMPLES)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const SELFCHECK_EXAMPLES: &str = "\
Examples:
  whipsnake selfcheck
  whipsnake selfcheck --backend cuda --filter ssm_scan";

/// `whipsnake selfcheck`.
#[derive(Clone, Debug, Args)]
#[command(after_help = SELFCHECK_EXAMPLES)]
pub struct SelfcheckArgs {
    /// Only ops whose name holds this text
    #[arg(long, value_name = "OP", value_parser = parse::non_empty)]
    pub filter: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where to run.
    #[command(flatten)]
    pub backend: BackendArgs,
}

#[cfg(test)]
mod tests;
