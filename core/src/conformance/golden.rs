//! Holds a whole model on a back end to logits that its public implementation computed.
//!
//! A golden directory is a checkpoint with `golden.json` (prompts, greedy tokens) and `golden.safetensors` (logits).

use crate::backend::Backend;
use crate::batch::{Batch, Chunk, to_usize};
use crate::checkpoint::Checkpoint;
use crate::engine::{Engine, Request};
use crate::error::{Error, Result};
use crate::model::Dims;
use crate::sampling::{SamplingOptions, likeliest};
use crate::session::{DeviceSession, Output, Session, Want};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

/// A prompt with what the public implementation makes of it.
#[derive(Clone, Debug, Deserialize)]
pub struct GoldenPrompt {
    /// Name of its tensors.
    pub name: String,
    /// The prompt.
    pub ids: Vec<u32>,
    /// Tokens that follow it, greedily.
    #[serde(default)]
    pub greedy: Vec<u32>,
    /// Logits of the last rows of the prompt, all of them for short prompts.
    #[serde(skip)]
    pub logits: Vec<Vec<f32>>,
}

/// A golden directory.
pub struct Golden {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The prompts.
    pub prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenFile {
    prompts: Vec<GoldenPrompt>,
}

/// How a back end's logits may differ.
#[derive(Clone, Copy, Debug)]
pub enum Closeness {
    /// Every logit within this of the golden one, and the same greedy tokens.
    Absolute(f32),
    /// All rows of a prompt together within this relative L2 distance, each within twice as much, and the same argmax
    /// wherever the two best golden logits differ by more than the row's error.
    RelativeL2(f32),
}

impl Golden {
    /// Reads a directory.
    ///
    /// # Errors
    /// A file is missing or not as described.
    pub fn open(dir: &Path) -> Result<Self> {
        let read =
            |name: &str| std::fs::read(dir.join(name)).map_err(|e| Error::io(&dir.join(name), &e));
        let malformed =
            |what: &dyn std::fmt::Display| Error::checkpoint(format!("{}: {what}", dir.display()));
        let file: GoldenFile =
            serde_json::from_slice(&read("golden.json")?).map_err(|e| malformed(&e))?;
        let bytes = read("golden.safetensors")?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| malformed(&e))?;
        let mut prompts = file.prompts;
        for prompt in &mut prompts {
            let logits =
                tensors.tensor(&format!("{}.logits", prompt.name)).map_err(|e| malformed(&e))?;
            let values: Vec<f32> = bytemuck::pod_collect_to_vec(logits.data());
            prompt.logits = values.chunks(logits.shape()[1]).map(<[f32]>::to_vec).collect();
        }
        Ok(Self { checkpoint: Checkpoint::open(dir)?, prompts })
    }

    /// Runs every law on back ends made by `make`; what does not hold, a line each.
    ///
    /// # Errors
    /// The back end cannot be opened or refuses a step.
    pub async fn faults<B: Backend>(
        &self,
        make: &dyn Fn() -> Result<B>,
        closeness: Closeness,
    ) -> Result<Vec<String>> {
        let mut faults = Vec::new();
        let mut session = self.session(make()?).await?;
        for prompt in &self.prompts {
            for (law, split) in splits(prompt.ids.len()) {
                let rows = run_split(&mut session, prompt, &split).await?;
                self.compare(prompt, &law, &rows, closeness, &mut faults);
            }
        }
        for (prompt, rows) in
            self.prompts.iter().zip(run_interleaved(&mut session, &self.prompts).await?)
        {
            self.compare(prompt, "interleaved with the others", &rows, closeness, &mut faults);
        }
        let mut engine = Engine::new(Box::new(session), 64);
        let continued: Vec<_> = self.prompts.iter().filter(|p| !p.greedy.is_empty()).collect();
        for (prompt, tokens) in continued.iter().zip(run_greedy(&mut engine, &continued).await?) {
            if matches!(closeness, Closeness::Absolute(_)) && tokens != prompt.greedy {
                faults.push(format!(
                    "{}: greedy tokens are {tokens:?}, want {:?}",
                    prompt.name, prompt.greedy
                ));
            }
        }
        Ok(faults)
    }

    async fn session<B: Backend>(&self, backend: B) -> Result<DeviceSession<B>> {
        let longest = self.prompts.iter().map(|p| p.ids.len() + p.greedy.len()).max().unwrap_or(1);
        let rows = self.prompts.iter().map(|p| p.ids.len()).sum();
        let dims = Dims { slots: self.prompts.len() + 1, context: longest, rows, outputs: 64 };
        DeviceSession::open(backend, &self.checkpoint, dims, &|_| {}).await
    }

    fn compare(
        &self,
        prompt: &GoldenPrompt,
        law: &str,
        rows: &[Vec<f32>],
        closeness: Closeness,
        faults: &mut Vec<String>,
    ) {
        let first = rows.len() - prompt.logits.len();
        for (index, (got, want)) in rows[first..].iter().zip(&prompt.logits).enumerate() {
            if let Some(fault) = row_fault(got, want, closeness) {
                faults.push(format!("{}, {law}: row {}: {fault}", prompt.name, first + index));
                return;
            }
        }
        if let Closeness::RelativeL2(bound) = closeness {
            let fault = distance_fault(&rows[first..].concat(), &prompt.logits.concat(), bound);
            faults.extend(fault.map(|fault| format!("{}, {law}: all rows: {fault}", prompt.name)));
        }
    }
}

/// What is wrong with the relative L2 distance of some logits, if anything.
fn distance_fault(got: &[f32], want: &[f32], bound: f32) -> Option<String> {
    let length = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    let error = length(&mut got.iter().zip(want).map(|(g, w)| g - w));
    let distance = error / length(&mut want.iter().copied());
    (distance.is_nan() || distance > bound)
        .then(|| format!("relative L2 {distance:e}, want at most {bound:e}"))
}

/// What is wrong with one row of logits, if anything.
fn row_fault(got: &[f32], want: &[f32], closeness: Closeness) -> Option<String> {
    let largest = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
    if !largest.is_finite() || got.iter().any(|g| !g.is_finite()) {
        return Some("a logit is not finite".into());
    }
    match closeness {
        Closeness::Absolute(bound) => (largest > bound)
            .then(|| format!("largest difference {largest:e}, want at most {bound:e}")),
        Closeness::RelativeL2(bound) => {
            if let Some(fault) = distance_fault(got, want, 2.0 * bound) {
                return Some(fault);
            }
            let [best, chosen] = [want, got].map(|row| to_usize(likeliest(row)));
            (best != chosen && want[best] - want[chosen] > 2.0 * largest)
                .then(|| format!("argmax is {chosen}, want {best}"))
        }
    }
}

/// Ways to feed a prompt: whole, token by token, 2 and the rest, shorter than the convolution, uneven.
fn splits(len: usize) -> Vec<(String, Vec<usize>)> {
    let chunks =
        |size: usize| (0..len).step_by(size).map(|start| size.min(len - start)).collect::<Vec<_>>();
    let mut list = vec![("whole".to_string(), vec![len]), ("token by token".into(), chunks(1))];
    if len > 2 {
        list.push(("2 + rest".into(), vec![2, len - 2]));
        // A chunk like any other follows the last short one: more of them show nothing new and take most of the time.
        let short = len.min(33) / 2;
        let mut pairs = vec![2; short];
        pairs.extend((len > 2 * short).then_some(len - 2 * short));
        list.push(("chunks of 2, then the rest".into(), pairs));
        list.push(("chunks of 7".into(), chunks(7)));
        list.push(("all but one, then one".into(), vec![len - 1, 1]));
    }
    list
}

/// Logits of every row of a prompt fed in chunks, always in slot 0: each run but the first reuses it.
async fn run_split(
    session: &mut dyn Session,
    prompt: &GoldenPrompt,
    split: &[usize],
) -> Result<Vec<Vec<f32>>> {
    let mut rows = Vec::new();
    let mut position = 0;
    for &len in split {
        let tokens = prompt.ids[position..position + len].to_vec();
        rows.extend(logits(session, &[Chunk { tokens, slot: 0, position }]).await?);
        position += len;
    }
    Ok(rows)
}

/// Logits of every row of every prompt, all in one batch after another with uneven chunks and shuffled slots.
async fn run_interleaved(
    session: &mut dyn Session,
    prompts: &[GoldenPrompt],
) -> Result<Vec<Vec<Vec<f32>>>> {
    let mut rows = vec![Vec::new(); prompts.len()];
    for round in 0.. {
        let mut chunks = Vec::new();
        let mut owners = Vec::new();
        for (index, prompt) in prompts.iter().enumerate() {
            let position = rows[index].len();
            let len = (1 + (index + round) * 5 % 13).min(prompt.ids.len() - position);
            if len > 0 {
                let tokens = prompt.ids[position..position + len].to_vec();
                chunks.push(Chunk { tokens, slot: prompts.len() - index, position });
                owners.extend(std::iter::repeat_n(index, len));
            }
        }
        if chunks.is_empty() {
            break;
        }
        for (owner, row) in owners.into_iter().zip(logits(session, &chunks).await?) {
            rows[owner].push(row);
        }
    }
    Ok(rows)
}

async fn logits(session: &mut dyn Session, chunks: &[Chunk]) -> Result<Vec<Vec<f32>>> {
    let batch = Batch::from_chunks(&session.limits(), chunks)?;
    // The batch's rows are bounded by the session's limit, itself a u32.
    let wanted: Vec<u32> = (0..batch.rows() as u32).collect();
    match session.forward(&batch, Want::Logits(&wanted)).await? {
        Output::Logits(rows) => Ok(rows),
        _ => Err(Error::request("step: logits were wanted")),
    }
}

/// The greedy continuation of every prompt, generated together.
async fn run_greedy(engine: &mut Engine, prompts: &[&GoldenPrompt]) -> Result<Vec<Vec<u32>>> {
    let mut ids = Vec::new();
    for prompt in prompts {
        ids.push(engine.submit(Request {
            prompt: prompt.ids.clone(),
            sampling: SamplingOptions::greedy(),
            entropy: 0,
            max_tokens: prompt.greedy.len(),
            stop_ids: BTreeSet::new(),
        })?);
    }
    let mut tokens = vec![Vec::new(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step().await?.events {
            if let (Some(index), Some(choice)) =
                (ids.iter().position(|&id| id == event.id), event.choice)
            {
                tokens[index].push(choice.token);
            }
        }
    }
    Ok(tokens)
}

/// Names of the golden directories below `root`, sorted.
///
/// # Errors
/// The folder cannot be read.
pub fn names(root: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(root).map_err(|e| Error::io(root, &e))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("golden.json").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}
