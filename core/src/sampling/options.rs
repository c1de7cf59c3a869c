//! What a request may ask of sampling.

use std::collections::BTreeMap;

use bytemuck::Zeroable;
use serde::Deserialize;

use super::draw::DrawRow;
use super::random::Random;
use crate::error::{Error, Result};

/// The most log-probabilities for each token, as in the OpenAI API.
pub const MAX_LOGPROBS: usize = 20;

/// How to pick tokens. The default samples from the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Divides the scores; 0 always takes the best token, of equals the one with the lowest id.
    pub temperature: f32,
    /// Sample from so many of the best tokens; 0 is all.
    pub top_k: u32,
    /// Sample from the fewest best tokens that together have this probability; 1 is all.
    pub top_p: f32,
    /// Leave out tokens below this share of the best token's probability; 0 leaves out none.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative scores of tokens in the prompt or the
    /// answer; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted once from the scores of tokens in the answer.
    pub presence_penalty: f32,
    /// Subtracted from the scores of tokens for each time that they are in the answer.
    pub frequency_penalty: f32,
    /// Added to the scores of single tokens: -100 forbids a token, 100 forces it.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Equal seeds give equal tokens for equal logits.
    pub seed: Option<u64>,
    /// Report the log-probability of the picked token and of so many of the most likely ones.
    pub logprobs: Option<usize>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: None,
            logprobs: None,
        }
    }
}

/// What somebody says about sampling; what is left out is taken from elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SamplingWishes {
    /// As in [`SamplingOptions`], like all that follow.
    pub temperature: Option<f32>,
    /// See above.
    pub top_k: Option<u32>,
    /// See above.
    pub top_p: Option<f32>,
    /// See above.
    pub min_p: Option<f32>,
    /// See above.
    pub repetition_penalty: Option<f32>,
    /// See above.
    pub presence_penalty: Option<f32>,
    /// See above.
    pub frequency_penalty: Option<f32>,
    /// See above.
    pub logit_bias: BTreeMap<u32, f32>,
    /// See above.
    pub seed: Option<u64>,
    /// See above.
    pub logprobs: Option<usize>,
}

impl SamplingWishes {
    /// These, and `defaults` where nothing is said.
    pub fn over(self, defaults: SamplingOptions) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: self.logit_bias,
            seed: self.seed.or(defaults.seed),
            logprobs: self.logprobs.or(defaults.logprobs),
        }
    }
}

impl SamplingOptions {
    /// Always the best token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Refuse what no sampler of a model with `vocabulary` logits can do.
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        let finite = |value: f32| value.is_finite();
        require("temperature", self.temperature, "a number from 0 on", |value| {
            finite(value) && value >= 0.0
        })?;
        require("top_p", self.top_p, "above 0 and at most 1", |value| value > 0.0 && value <= 1.0)?;
        require("min_p", self.min_p, "from 0 to 1", |value| (0.0..=1.0).contains(&value))?;
        require("repetition_penalty", self.repetition_penalty, "a number above 0", |value| {
            finite(value) && value > 0.0
        })?;
        for (name, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            require(name, penalty, "from -2 to 2", |value| (-2.0..=2.0).contains(&value))?;
        }
        for (token, bias) in &self.logit_bias {
            if usize::try_from(*token).map_or(true, |token| token >= vocabulary) {
                return Err(Error::request(format!(
                    "logit_bias: token {token} is past the vocabulary of {vocabulary}"
                )));
            }
            require(&format!("logit_bias of token {token}"), *bias, "from -100 to 100", |value| {
                (-100.0..=100.0).contains(&value)
            })?;
        }
        match self.logprobs {
            Some(count) if count > MAX_LOGPROBS => {
                Err(Error::request(format!("logprobs is {count}, want at most {MAX_LOGPROBS}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the choice is the argmax of the logits and nothing else is asked for.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && self.logprobs.is_none() && !self.processes_logits()
    }

    /// The choice as devices make it, with random numbers from `random` on.
    pub(super) fn row(&self, random: &Random) -> DrawRow {
        let mut row = DrawRow {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            ..DrawRow::zeroed()
        };
        row.set_random(random);
        row
    }

    /// Whether the logits change before the choice.
    pub(super) fn processes_logits(&self) -> bool {
        !self.logit_bias.is_empty()
            || self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

fn require(name: &str, value: f32, want: &str, holds: impl Fn(f32) -> bool) -> Result<()> {
    if holds(value) {
        Ok(())
    } else {
        Err(Error::request(format!("{name} is {value}, want {want}")))
    }
}
