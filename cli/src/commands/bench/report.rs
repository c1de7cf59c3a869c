//! What `bench` measured, as JSON and as a table.

use serde::{Deserialize, Serialize};
use whipsnake_core::backend::Ledger;
use whipsnake_core::plan::Work;

use super::check::Check;
use crate::args::Ceilings;
use crate::memory::ProcessMemory;
use crate::output::thousands;

/// What a figure times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Reading prompts.
    Prefill,
    /// Writing, a token of every sequence a step.
    Decode,
}

impl Phase {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Median and spread of one measurement, in tokens a second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was timed.
    pub phase: Phase,
    /// Sequences that ran together.
    pub sequences: usize,
    /// Tokens of each prompt; for decode, the context it begins with.
    pub prompt: usize,
    /// Tokens that were timed, of one sequence.
    pub tokens: usize,
    /// Median of all sequences together.
    pub median: f64,
    /// Slowest run.
    pub min: f64,
    /// Fastest run.
    pub max: f64,
    /// Gigabytes (decode) or teraflops (prefill) a second that the work amounts to.
    pub rate: f64,
    /// Share of the device's ceiling, where it was given.
    pub share: Option<f64>,
    /// Experts a layer that a step is expected to hit under a uniform choice (decode of a mixture of experts).
    pub experts_hit: Option<f64>,
}

impl Figure {
    /// A figure of runs in tokens a second, its work not yet set.
    pub fn new(
        phase: Phase,
        sequences: usize,
        prompt: usize,
        tokens: usize,
        mut runs: Vec<f64>,
    ) -> Self {
        runs.sort_by(f64::total_cmp);
        Self {
            phase,
            sequences,
            prompt,
            tokens,
            median: runs[runs.len() / 2],
            min: runs[0],
            max: runs[runs.len() - 1],
            rate: 0.0,
            share: None,
            experts_hit: None,
        }
    }

    /// Sets the rate of the work that the median amounts to.
    pub fn set_work(&mut self, work: &Work, ceilings: Option<Ceilings>) {
        match self.phase {
            Phase::Decode => {
                // The middle of the run's contexts.
                let bytes = work.decode_bytes(self.sequences, self.prompt + self.tokens / 2);
                self.rate = bytes * self.median / self.sequences as f64 / 1e9;
                self.share = ceilings.map(|c| self.rate / c.gigabytes);
                self.experts_hit = work.experts_hit(self.sequences);
            }
            Phase::Prefill => {
                let operations = work.prefill_operations(self.prompt) / self.prompt as f64;
                self.rate = operations * self.median / 1e12;
                self.share = ceilings.map(|c| self.rate / c.teraflops);
            }
        }
    }
}

/// What is printed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Name of the back end.
    pub backend: String,
    /// From opening the files to the first step.
    pub load_seconds: f64,
    /// Runs behind each median.
    pub repeat: usize,
    /// Bytes that the back end holds.
    pub ledger: Ledger,
    /// Bytes that `plan` says of the same session.
    pub planned: u64,
    /// Bytes that the process holds, where the system tells.
    pub process: Option<ProcessMemory>,
    /// The measurements.
    pub figures: Vec<Figure>,
    /// Whether the ways of running agree.
    pub checks: Vec<Check>,
}

impl Report {
    /// As text.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} on {}: loaded in {:.3} s, medians of {}\n",
            self.model, self.backend, self.load_seconds, self.repeat
        );
        text.push_str("phase     sequences   prompt   tokens      tok/s   (min to max)\n");
        self.figures.iter().for_each(|figure| text.push_str(&line(figure)));
        text.push_str(&self.memory());
        self.checks.iter().for_each(|check| text.push_str(&verdict(check)));
        text
    }

    fn memory(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (l, held) = (&self.ledger, self.ledger.total());
        let mut text = format!(
            "memory: weights {:.1} MiB, state {:.1}, keys and values {:.1}, scratch {:.1}; {:.2} % of the plan\n",
            mib(l.weights),
            mib(l.state),
            mib(l.kv),
            mib(l.scratch),
            100.0 * held as f64 / self.planned as f64
        );
        if let Some(process) = &self.process {
            text.push_str(&format!(
                "process: {:.1} MiB resident now, {:.1} MiB at the peak\n",
                mib(process.resident),
                mib(process.peak)
            ));
        }
        text
    }
}

/// A speed in tokens a second, as it is printed.
pub fn speed(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { thousands(&format!("{value:.0}")) }
}

fn line(f: &Figure) -> String {
    let unit = if f.phase == Phase::Decode { "GB/s" } else { "TFLOP/s" };
    let mut text = format!(
        "{:<9} {:>9} {:>8} {:>8} {:>10}   ({} to {}), {:.3} {unit}",
        f.phase.name(),
        f.sequences,
        f.prompt,
        f.tokens,
        speed(f.median),
        speed(f.min),
        speed(f.max),
        f.rate
    );
    if let Some(share) = f.share {
        text.push_str(&format!(", {:.1} % of the ceiling", 100.0 * share));
    }
    if let Some(experts) = f.experts_hit {
        text.push_str(&format!(", {experts:.1} experts a layer expected"));
    }
    text.push('\n');
    text
}

fn verdict(check: &Check) -> String {
    let Check { sequences, prompt, tokens, differences } = check;
    let mut text = format!("check: {sequences} x {prompt}: logits finite, ");
    if differences.is_empty() {
        text.push_str(&format!("{tokens} tokens equal replayed, op by op and unfused\n"));
        return text;
    }
    let one = |d: &super::check::Difference| {
        let [(a, a_logit), (b, b_logit)] = d.logits;
        format!(
            "{} first parts at token {} of sequence {}: {a} ({a_logit}) against {b} ({b_logit})",
            d.mode, d.position, d.sequence
        )
    };
    text.push_str(&differences.iter().map(one).collect::<Vec<_>>().join("; "));
    text.push('\n');
    text
}
