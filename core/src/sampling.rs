//! From logits to the next token.
//!
//! Order: logit bias; repetition, presence and frequency penalties; temperature; top-k; top-p;
//! min-p; draw. Log-probabilities are those of the model itself: the log-softmax of the logits as
//! they came, before any of these.

mod draw;
mod options;
mod random;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::error::{Error, Result};
pub(crate) use draw::choose;
pub use draw::{DrawRow, MOST_CANDIDATES};
pub use options::{MAX_LOGPROBS, SamplingOptions, SamplingWishes};
pub use random::Random;

/// The token that was picked.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its id.
    pub token: u32,
    /// Its log-probability under the model, where the options ask for log-probabilities.
    pub log_probability: Option<f32>,
    /// The most likely tokens and their log-probabilities, best first; as many as the options ask for.
    pub top: Vec<(u32, f32)>,
}

/// Picks the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplingOptions,
    random: Random,
    vocabulary: usize,
    /// Tokens of the prompt and the answer, with how often each is in the answer.
    seen: BTreeMap<u32, u32>,
    scores: Vec<f32>,
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler for a model of `vocabulary` logits; `entropy` seeds it where the options have no seed.
    pub fn new(options: SamplingOptions, vocabulary: usize, entropy: u64) -> Result<Self> {
        options.check(vocabulary)?;
        let random = Random::new(options.seed.unwrap_or(entropy));
        Ok(Self {
            options,
            random,
            vocabulary,
            seen: BTreeMap::new(),
            scores: Vec::new(),
            candidates: Vec::new(),
        })
    }

    /// A token of the prompt: the repetition penalty counts it, the other two do not.
    pub fn observe(&mut self, token: u32) {
        self.seen.entry(token).or_default();
    }

    /// The next token after these logits. It counts as generated for the penalties.
    pub fn pick(&mut self, logits: &[f32]) -> Result<Choice> {
        self.check(logits)?;
        let token = if self.options.processes_logits() {
            let mut scores = std::mem::take(&mut self.scores);
            scores.clear();
            scores.extend_from_slice(logits);
            self.bias_and_penalise(&mut scores);
            let token = self.choose(&scores);
            self.scores = scores;
            token?
        } else {
            self.choose(logits)?
        };
        *self.seen.entry(token).or_default() += 1;
        let mut choice = Choice { token, log_probability: None, top: Vec::new() };
        if let Some(count) = self.options.logprobs {
            let normaliser = log_sum_exp(logits);
            choice.log_probability = logits.get(index(token)).map(|logit| logit - normaliser);
            choice.top = best(logits, count)
                .into_iter()
                .map(|(id, logit)| (id, logit - normaliser))
                .collect();
        }
        Ok(choice)
    }

    fn check(&self, logits: &[f32]) -> Result<()> {
        if logits.len() != self.vocabulary {
            return Err(Error::request(format!(
                "sampling: {} logits, want {} (the vocabulary)",
                logits.len(),
                self.vocabulary
            )));
        }
        let bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        match logits.iter().position(bad) {
            Some(at) => Err(Error::request(format!(
                "sampling: the logit of token {at} is {}; the forward pass gave no usable numbers",
                logits[at]
            ))),
            None => Ok(()),
        }
    }

    fn bias_and_penalise(&self, scores: &mut [f32]) {
        let SamplingOptions { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.options;
        for (token, bias) in &self.options.logit_bias {
            if let Some(score) = scores.get_mut(index(*token)) {
                *score += bias;
            }
        }
        for (token, generated) in &self.seen {
            let Some(score) = scores.get_mut(index(*token)) else { continue };
            if *score > 0.0 {
                *score /= repetition_penalty;
            } else {
                *score *= repetition_penalty;
            }
            if *generated > 0 {
                *score -= presence_penalty + frequency_penalty * (*generated as f32);
            }
            // A score that overflowed would make every weight not a number.
            *score = score.min(f32::MAX);
        }
    }

    fn choose(&mut self, scores: &[f32]) -> Result<u32> {
        let mut row = self.options.row(&self.random);
        let few = index(row.top_k) < scores.len() && row.top_k > 0;
        let candidates = &mut self.candidates;
        candidates.clear();
        match (row.is_greedy(), few) {
            (true, _) => candidates.extend(argmax(scores)),
            (false, true) => candidates.extend(best(scores, index(row.top_k))),
            (false, false) => candidates.extend((0..).zip(scores.iter().copied())),
        }
        let token = choose(candidates, &mut row);
        self.random = row.random();
        token.ok_or_else(|| {
            Error::request("sampling: every token is excluded (all logits are -inf)")
        })
    }

    /// How a device chooses the next token; none where only the host can: the logits are changed or asked for, or the
    /// candidates are more than a device sorts.
    pub fn row(&self) -> Option<DrawRow> {
        let mut row = self.options.row(&self.random);
        if index(row.top_k) >= self.vocabulary {
            row.top_k = 0;
        }
        let few = row.top_k <= MOST_CANDIDATES && (row.top_k > 0 || row.top_p == 1.0);
        let able = self.options.logprobs.is_none() && !self.options.processes_logits();
        (able && (row.is_greedy() || few)).then_some(row)
    }

    /// Takes note of the token that a device chose by [`Sampler::row`].
    pub fn chosen(&mut self, token: u32) -> Result<Choice> {
        if index(token) >= self.vocabulary {
            return Err(Error::request(
                "sampling: the logits hold no usable numbers; the forward pass gave none",
            ));
        }
        if !self.options.row(&self.random).is_greedy() {
            self.random.bits();
        }
        *self.seen.entry(token).or_default() += 1;
        Ok(Choice { token, log_probability: None, top: Vec::new() })
    }
}

fn index(token: u32) -> usize {
    usize::try_from(token).unwrap_or(usize::MAX)
}

/// The token that greedy decoding takes: the lowest id of the highest logit, 0 where there is none.
pub fn likeliest(logits: &[f32]) -> u32 {
    argmax(logits).map_or(0, |(token, _)| token)
}

/// The highest score and the lowest id that has it; nothing where all are -inf.
fn argmax(scores: &[f32]) -> Option<(u32, f32)> {
    argmax_of((0..).zip(scores.iter().copied()))
}

/// The first candidate of the highest score; nothing where all are -inf.
fn argmax_of(candidates: impl Iterator<Item = (u32, f32)>) -> Option<(u32, f32)> {
    let mut found = None;
    let mut highest = f32::NEG_INFINITY;
    for (id, score) in candidates {
        if score > highest {
            highest = score;
            found = Some((id, highest));
        }
    }
    found
}

/// Better first: the higher score, then the lower id.
fn by_score(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The `count` best, best first.
fn best(scores: &[f32], count: usize) -> Vec<(u32, f32)> {
    /// Up to here inserting into a short sorted list beats moving all scores.
    const SHORT: usize = 128;
    let count = count.min(scores.len());
    let scores = (0..).zip(scores.iter().copied());
    if count > SHORT {
        let mut all: Vec<(u32, f32)> = scores.collect();
        if count < all.len() {
            all.select_nth_unstable_by(count, by_score);
            all.truncate(count);
        }
        all.sort_unstable_by(by_score);
        return all;
    }
    let mut list: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (token, score) in scores {
        if list.len() < count || list.last().is_some_and(|last| score > last.1) {
            let at = list.partition_point(|other| other.1 >= score);
            list.insert(at, (token, score));
            list.truncate(count);
        }
    }
    list
}

fn log_sum_exp(logits: &[f32]) -> f32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - highest).exp())).sum();
    highest + sum.ln() as f32
}
