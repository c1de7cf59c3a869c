//! The options of `whipsnake bench`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::groups::{BackendArgs, ModelArgs};
use super::parse;

const BENCH_EXAMPLES: &str = "\
Examples:
  whipsnake bench
  whipsnake bench --model owner/name --prefill 512,4096 --decode 256
  whipsnake bench --synthetic nemotron-3-nano-nvfp4 --sequences 1,8,32 --context 16,4096 --json new.json --svg new.svg
  whipsnake bench --compare old.json new.json
  whipsnake bench --profile --trace trace.json   where the time goes, op by op
  whipsnake bench ops --backend cuda             every op alone";

/// `whipsnake bench`.
#[derive(Clone, Debug, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub subject: Option<BenchSubject>,
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
    /// Contexts at which decoding begins [default: behind each prompt]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = parse::count)]
    pub context: Vec<usize>,
    /// Most prompt tokens in one step [default: what suits the back end]
    #[arg(long, value_name = "TOKENS", value_parser = parse::count)]
    pub prefill_chunk: Option<usize>,
    /// Tokens to write after each prompt
    #[arg(long, value_name = "N", default_value = "128", value_parser = parse::count)]
    pub decode: usize,
    /// Measure this many times and tell the median
    #[arg(long, value_name = "N", default_value = "5", value_parser = parse::count)]
    pub repeat: usize,
    /// Leave out the check that replayed, eager and unfused steps choose the same tokens
    #[arg(long)]
    pub no_check: bool,
    /// What the device reaches at best, for the shares: gigabytes and teraflops a second
    #[arg(long, value_name = "GB/S,TFLOP/S")]
    pub ceilings: Option<Ceilings>,
    /// Tell where the time of a step goes instead
    #[arg(long)]
    pub profile: bool,
    /// Write the profile as a trace that Perfetto opens
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub trace: Option<PathBuf>,
    /// Only ops whose name holds this text
    #[arg(long, value_name = "OP", requires = "subject", value_parser = parse::non_empty)]
    pub filter: Option<String>,
    /// Write the figures to a JSON file as well
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw decode speed over sequences
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    pub svg: Option<PathBuf>,
    /// Print ratios of two JSON files instead of measuring
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, exclusive = true)]
    pub compare: Vec<PathBuf>,
    /// Where to run.
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// What `bench` measures where it is not a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchSubject {
    /// Every op alone, at the shapes of Nemotron 3 Nano
    Ops,
}

/// What a device reaches at best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Gigabytes a second of memory.
    pub gigabytes: f64,
    /// Teraflops a second of products.
    pub teraflops: f64,
}

impl FromStr for Ceilings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let want = || format!("`{text}`: want two numbers above 0, such as 4300,790");
        let (gigabytes, teraflops) = text.split_once(',').ok_or_else(want)?;
        let number = |text: &str| {
            let number = text.trim().parse::<f64>().ok();
            number.filter(|n| n.is_finite() && *n > 0.0).ok_or_else(want)
        };
        Ok(Self { gigabytes: number(gigabytes)?, teraflops: number(teraflops)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_two_numbers() {
        let read = Ceilings { gigabytes: 4300.0, teraflops: 790.5 };
        assert_eq!("4300, 790.5".parse(), Ok(read));
        for bad in ["4300", "4300,", "0,1", "a,b", "inf,1"] {
            assert!(bad.parse::<Ceilings>().is_err(), "{bad}");
        }
    }
}
