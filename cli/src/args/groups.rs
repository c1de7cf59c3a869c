//! Options that several subcommands share.

use std::fmt;

use clap::{Args, ValueEnum};

use super::parse::{self, LogitBias};

/// Which model.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Folder with config.json and *.safetensors, or a hub id such as owner/name or
    /// owner/name@revision [default: the small model inside the program]
    #[arg(short, long, value_name = "DIR|ID")]
    pub model: Option<String>,
}

/// Where to run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Device")]
pub struct BackendArgs {
    /// What runs the model
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendChoice,
    /// Device by number or by a part of its name, as `whipsnake devices` lists them
    #[arg(long, value_name = "N|NAME", value_parser = parse::non_empty)]
    pub device: Option<String>,
    /// How activations, keys and values are kept on a device that has the choice
    #[arg(long, value_enum, default_value_t)]
    pub precision: Precision,
    /// How keys and values are kept, where not as the precision says: for CUDA
    #[arg(long, value_enum, value_name = "TYPE")]
    pub kv: Option<Kv>,
    /// How the state of Mamba2 layers is kept: for CUDA
    #[arg(long, value_enum, value_name = "TYPE")]
    pub state: Option<StateType>,
}

/// How the state of Mamba2 layers is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StateType {
    /// Four bytes a number
    F32,
    /// Two: half the memory and traffic of decoding many sequences, rounded once a step
    Bf16,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kv {
    /// Four bytes a number
    F32,
    /// Two
    Bf16,
    /// One: a long context in half the memory, at three bits of mantissa
    Fp8,
}

/// How activations, keys and values are kept. Sums are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// What suits the device
    #[default]
    Auto,
    /// Every digit: for comparing implementations
    F32,
    /// Half the bytes
    Bf16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

/// What runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// The best one that works here
    #[default]
    Auto,
    /// NVIDIA cards through CUDA
    Cuda,
    /// Any GPU through Vulkan, Metal or DX12
    Wgpu,
    /// The processor
    Cpu,
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
            Self::Cpu => "cpu",
        })
    }
}

/// How tokens are chosen. What is left out is taken from the model's generation_config.json.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Sampling (default: as the model's generation_config.json says)")]
pub struct SamplingArgs {
    /// Always take the likeliest token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    pub greedy: bool,
    /// Flattens (above 1) or sharpens (below 1) the choice; 0 is greedy
    #[arg(short, long, value_name = "T", value_parser = parse::temperature)]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest tokens; 0 is all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Choose among the likeliest tokens that make up this much probability
    #[arg(long, value_name = "P", value_parser = parse::top_p)]
    pub top_p: Option<f32>,
    /// Leave out tokens below this share of the likeliest one's probability
    #[arg(long, value_name = "P", value_parser = parse::min_p)]
    pub min_p: Option<f32>,
    /// Divide the score of tokens that were there before; 1 is off
    #[arg(long, value_name = "F", value_parser = parse::repetition_penalty)]
    pub repetition_penalty: Option<f32>,
    /// Lower the score of tokens that were written before, once
    #[arg(long, value_name = "F", value_parser = parse::penalty, allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Lower the score of tokens that were written before, at each time
    #[arg(long, value_name = "F", value_parser = parse::penalty, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Add V, from -100 to 100, to the score of token ID; can be given many times
    #[arg(long, value_name = "ID=V")]
    pub logit_bias: Vec<LogitBias>,
    /// Same seed, same text, on the same back end
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Stop before this text; can be given many times
    #[arg(long, value_name = "TEXT", value_parser = parse::non_empty)]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    /// Whether the likeliest token is always taken, however that was asked for.
    pub fn is_greedy(&self) -> bool {
        self.greedy || self.temperature == Some(0.0)
    }
}
