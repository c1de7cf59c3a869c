//! The choice among candidates, which devices make too.

use super::random::Random;
use super::{argmax_of, by_score};
use bytemuck::{Pod, Zeroable};

/// The most candidates that a device sorts.
pub const MOST_CANDIDATES: u32 = 1024;

/// How the next token of one sequence is chosen. One layout in Rust, WGSL and CUDA.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct DrawRow {
    /// Divides the scores; 0 takes the best.
    pub temperature: f32,
    /// Choose from so many of the best; 0 is all.
    pub top_k: u32,
    /// Choose from the fewest best that have this share of the weight; 1 is all.
    pub top_p: f32,
    /// Leave out what weighs less than this share of the best.
    pub min_p: f32,
    /// State of the random numbers, low word first; each draw takes one.
    pub state: [u32; 2],
    /// Rows are two times 16 bytes.
    pub spare: [u32; 2],
}

impl DrawRow {
    /// Whether no random number is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    pub(super) fn random(&self) -> Random {
        Random::at(u64::from(self.state[0]) | u64::from(self.state[1]) << 32)
    }

    pub(super) fn set_random(&mut self, random: &Random) {
        // The halves of a word.
        self.state = [random.state() as u32, (random.state() >> 32) as u32];
    }
}

/// The choice among candidates and their scores, all of those that top-k leaves; nothing where all are -inf. Takes a
/// random number where one is drawn.
pub(crate) fn choose(candidates: &mut Vec<(u32, f32)>, row: &mut DrawRow) -> Option<u32> {
    let (token, highest) = argmax_of(candidates.iter().copied())?;
    if row.is_greedy() {
        return Some(token);
    }
    weigh(candidates, highest, row.temperature);
    if row.top_p < 1.0 {
        keep_nucleus(candidates, row.top_p);
    }
    // Weights are relative to the best token's, which is 1.
    let floor = row.min_p;
    if floor > 0.0 {
        candidates.retain(|(_, weight)| *weight >= floor);
    }
    let mut random = row.random();
    let unit = random.unit();
    row.set_random(&random);
    Some(draw(candidates, unit).unwrap_or(token))
}

/// Scores become weights exp((score - highest) / temperature); those of 0 go.
fn weigh(candidates: &mut Vec<(u32, f32)>, highest: f32, temperature: f32) {
    let scale = 1.0 / f64::from(temperature);
    for (_, score) in candidates.iter_mut() {
        *score = (f64::from(*score - highest) * scale).max(f64::from(f32::MIN)) as f32;
        *score = score.exp();
    }
    candidates.retain(|(_, weight)| *weight > 0.0);
}

/// Keep the fewest best candidates whose share of the weight is at least `top_p`.
///
/// Sorts only as many as that takes: 256, then four times more until the share is reached.
fn keep_nucleus(candidates: &mut Vec<(u32, f32)>, top_p: f32) {
    let total: f64 = candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let wanted = total * f64::from(top_p);
    let mut sorted = 256;
    loop {
        let whole = sorted >= candidates.len();
        let part = if whole {
            &mut candidates[..]
        } else {
            candidates.select_nth_unstable_by(sorted, by_score);
            &mut candidates[..sorted]
        };
        part.sort_unstable_by(by_score);
        let mut share = 0.0;
        let reached = part.iter().position(|(_, weight)| {
            share += f64::from(*weight);
            share >= wanted
        });
        if let Some(last) = reached {
            candidates.truncate(last + 1);
            return;
        }
        if whole {
            return;
        }
        sorted *= 4;
    }
}

/// The candidate at `unit` (in 0..1) of the total weight.
fn draw(candidates: &[(u32, f32)], unit: f64) -> Option<u32> {
    let total: f64 = candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let mut left = unit * total;
    for (token, weight) in candidates {
        left -= f64::from(*weight);
        if left < 0.0 {
            return Some(*token);
        }
    }
    candidates.last().map(|(token, _)| *token)
}
