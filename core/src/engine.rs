//! Sequences in slots: admission, chunked prefill mixed with decode in ragged batches, sampling, cancellation.
//!
//! One [`Engine::step`] is one batch on the device. A slot is clean by construction: a sequence starts at position 0,
//! where no op reads the slot, or continues the tokens that the slot holds since an earlier sequence left it.

mod flight;

use crate::batch::{Batch, Chunk};
use crate::error::{Error, Result};
use crate::sampling::{Choice, Sampler, SamplingOptions};
use crate::session::{Output, Session, Want};
use flight::Flight;
use std::collections::{BTreeSet, VecDeque};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt, at least one token.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Seeds the draw where `sampling` names no seed.
    pub entropy: u64,
    /// Most tokens to generate, at least one.
    pub max_tokens: usize,
    /// Tokens that end the sequence.
    pub stop_ids: BTreeSet<u32>,
}

/// A sequence's name while it is waiting or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was generated.
    StopToken,
    /// `max_tokens` were generated, or the context is full.
    Length,
    /// Its logits could not be sampled.
    Failed(Error),
}

/// News of one sequence from one step.
#[derive(Clone, Debug)]
pub struct Event {
    /// Which sequence.
    pub id: SequenceId,
    /// The token that was chosen; `None` where the sequence failed.
    pub choice: Option<Choice>,
    /// Set where the sequence ended with this step. Its slot is free again.
    pub finish: Option<Finish>,
    /// Tokens at the start of its prompt that did not run, since a slot held their state.
    pub cached: usize,
}

/// What one step did.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// Tokens and ends, in slot order.
    pub events: Vec<Event>,
    /// Prompt rows that ran.
    pub prefill_rows: usize,
    /// Generated rows that ran.
    pub decode_rows: usize,
}

/// One sequence in a slot.
struct Sequence {
    id: SequenceId,
    /// Prompt and generated tokens.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Tokens that the slot holds, once what is queued has run.
    position: usize,
    /// As many of them were there before.
    cached: usize,
    sampler: Sampler,
    greedy: bool,
    max_tokens: usize,
    stop_ids: BTreeSet<u32>,
}

/// Runs sequences on a session.
pub struct Engine {
    session: Box<dyn Session>,
    slots: Vec<Option<Sequence>>,
    /// Tokens whose state a free slot holds.
    held: Vec<Vec<u32>>,
    waiting: VecDeque<Sequence>,
    /// Steps that were queued and not collected.
    flight: Option<Flight>,
    prefill_chunk: usize,
    next_id: u64,
}

/// A step being built: which slot each segment belongs to, and the rows whose next token is wanted.
#[derive(Default)]
struct Plan {
    chunks: Vec<Chunk>,
    /// Slots whose sequence gets a token, with the row of its logits.
    samples: Vec<(usize, u32)>,
    rows: usize,
    prefill_rows: usize,
}

impl Engine {
    /// An engine over `session` that prefills at most `prefill_chunk` rows of a prompt a step.
    pub fn new(session: Box<dyn Session>, prefill_chunk: usize) -> Self {
        let count = session.limits().slots;
        Self {
            session,
            slots: (0..count).map(|_| None).collect(),
            held: vec![Vec::new(); count],
            waiting: VecDeque::new(),
            flight: None,
            prefill_chunk: prefill_chunk.max(1),
            next_id: 0,
        }
    }

    /// The session.
    pub fn session(&self) -> &dyn Session {
        &*self.session
    }

    /// The session, to run batches on it past the engine. Running sequences are dropped, held state is forgotten.
    pub fn take_over(&mut self) -> &mut dyn Session {
        self.forget();
        &mut *self.session
    }

    fn forget(&mut self) {
        self.slots.fill_with(|| None);
        self.held.fill(Vec::new());
        self.flight = None;
    }

    /// Queues a sequence.
    ///
    /// # Errors
    /// An empty prompt, one longer than the context or with a token past the vocabulary, bad sampling options.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId> {
        let limits = self.session.limits();
        let prompt_len = request.prompt.len();
        if prompt_len == 0 {
            return Err(Error::request("prompt: no tokens, want at least one; give some text"));
        }
        if prompt_len > limits.context {
            return Err(Error::request(format!(
                "prompt: {prompt_len} tokens do not fit the context of {}; ask for a longer --context or shorten it",
                limits.context
            )));
        }
        if let Some(token) =
            request.prompt.iter().find(|&&t| crate::batch::to_usize(t) >= limits.vocabulary)
        {
            return Err(Error::request(format!(
                "prompt: token {token} is past the vocabulary of {}",
                limits.vocabulary
            )));
        }
        if request.max_tokens == 0 {
            return Err(Error::request("max_tokens is 0, want at least 1"));
        }
        let greedy = request.sampling.is_plain_greedy();
        let mut sampler = Sampler::new(request.sampling, limits.vocabulary, request.entropy)?;
        request.prompt.iter().for_each(|&t| sampler.observe(t));
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Sequence {
            id,
            tokens: request.prompt,
            prompt_len,
            position: 0,
            cached: 0,
            sampler,
            greedy,
            max_tokens: request.max_tokens,
            stop_ids: request.stop_ids,
        });
        Ok(id)
    }

    /// Forgets a sequence; its slot is free from the next step on. Unknown ids are left alone.
    pub fn cancel(&mut self, id: SequenceId) {
        self.waiting.retain(|s| s.id != id);
        let running = |s: &Option<Sequence>| s.as_ref().is_some_and(|s| s.id == id);
        if let Some(slot) = self.slots.iter().position(running) {
            self.release(slot);
        }
    }

    /// Frees a slot; what it holds stays known.
    fn release(&mut self, slot: usize) {
        if let Some(mut sequence) = self.slots[slot].take() {
            // A token that was never collected is in the slot: nobody knows what that holds.
            let known = sequence.position <= sequence.tokens.len();
            sequence.tokens.truncate(if known { sequence.position } else { 0 });
            self.held[slot] = sequence.tokens;
        }
    }

    /// Whether nothing is waiting or running.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// Runs one batch: every decoding sequence, then prompt chunks in order of arrival while rows last.
    ///
    /// Where all sequences are decoding and the session runs ahead, the batch after it is queued before this one's tokens
    /// are read. A sequence that ends has then run its last token too, and its slot holds that. The future is to be driven
    /// to its end: what a step queued and did not collect is lost.
    ///
    /// # Errors
    /// The device refuses or is lost. Every running sequence is then dropped: its state is unknown.
    pub async fn step(&mut self) -> Result<StepReport> {
        let report = self.any_step().await;
        if report.is_err() {
            self.forget();
        }
        report
    }

    async fn any_step(&mut self) -> Result<StepReport> {
        if !self.flies() {
            self.admit();
            let plan = self.plan();
            if plan.chunks.is_empty() {
                return Ok(StepReport::default());
            }
            match self.flown(&plan) {
                Some(rows) => self.take_off(&plan, &rows)?,
                None => return self.lone_step(&plan).await,
            }
        }
        self.fly().await
    }

    async fn lone_step(&mut self, plan: &Plan) -> Result<StepReport> {
        let output = self.run(plan).await?;
        self.advance(&plan.chunks);
        let rows = plan.samples.iter().map(|(slot, _)| *slot);
        Ok(StepReport {
            events: self.take(rows.enumerate(), &output),
            prefill_rows: plan.prefill_rows,
            decode_rows: plan.rows - plan.prefill_rows,
        })
    }

    fn advance(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            if let Some(sequence) = &mut self.slots[chunk.slot] {
                sequence.position += chunk.tokens.len();
            }
        }
    }

    /// Gives free slots to waiting sequences: the one that holds most of the prompt, else one that holds least.
    fn admit(&mut self) {
        while let Some(sequence) = self.waiting.front() {
            let free = (0..self.slots.len()).filter(|&slot| self.slots[slot].is_none());
            let score = |&slot: &usize| {
                let held = &self.held[slot];
                // At least one token must run: its logits are wanted.
                let useful =
                    held.len() < sequence.tokens.len() && sequence.tokens.starts_with(held);
                (if useful { held.len() } else { 0 }, std::cmp::Reverse(held.len()))
            };
            let Some(slot) = free.max_by_key(score) else { return };
            let cached = score(&slot).0;
            self.held[slot].clear();
            if let Some(sequence) = self.waiting.pop_front() {
                self.slots[slot] = Some(Sequence { position: cached, cached, ..sequence });
            }
        }
    }

    fn plan(&self) -> Plan {
        let budget = self.session.limits().rows;
        let mut plan = Plan::default();
        let running =
            || self.slots.iter().enumerate().filter_map(|(slot, s)| s.as_ref().map(|s| (slot, s)));
        for (slot, sequence) in running().filter(|(_, s)| s.decoding()) {
            if plan.rows < budget {
                plan.push(slot, sequence, 1);
            }
        }
        let mut prefilling: Vec<_> = running().filter(|(_, s)| !s.decoding()).collect();
        prefilling.sort_by_key(|(_, s)| s.id);
        for (slot, sequence) in prefilling {
            let left = sequence.tokens.len() - sequence.position;
            let rows = left.min(self.prefill_chunk).min(budget - plan.rows);
            if rows > 0 {
                plan.push(slot, sequence, rows);
                plan.prefill_rows += rows;
            }
        }
        plan
    }

    async fn run(&mut self, plan: &Plan) -> Result<Output> {
        let batch = Batch::from_chunks(&self.session.limits(), &plan.chunks)?;
        let rows: Vec<u32> = plan.samples.iter().map(|(_, row)| *row).collect();
        let greedy =
            |(slot, _): &(usize, u32)| self.slots[*slot].as_ref().is_some_and(|s| s.greedy);
        let want = match (rows.is_empty(), plan.samples.iter().all(greedy)) {
            (true, _) => Want::Nothing,
            (false, true) => Want::Greedy(&rows),
            (false, false) => Want::Logits(&rows),
        };
        self.session.forward(&batch, want).await
    }

    /// Gives rows of an output, by their index, to the sequences in slots.
    fn take(&mut self, rows: impl Iterator<Item = (usize, usize)>, output: &Output) -> Vec<Event> {
        let context = self.session.limits().context;
        let mut events = Vec::new();
        for (index, slot) in rows {
            let Some(sequence) = &mut self.slots[slot] else { continue };
            let event = sequence.take(output, index, context);
            if event.finish.is_some() {
                self.release(slot);
            }
            events.push(event);
        }
        events
    }
}

impl Plan {
    /// Adds the next `rows` tokens of a sequence; its last row is sampled where no token follows.
    fn push(&mut self, slot: usize, sequence: &Sequence, rows: usize) {
        let end = sequence.position + rows;
        let tokens = sequence.tokens[sequence.position..end].to_vec();
        self.chunks.push(Chunk { tokens, slot, position: sequence.position });
        self.rows += rows;
        if end == sequence.tokens.len() {
            // Rows are bounded by the session's limit, itself a u32.
            self.samples.push((slot, (self.rows - 1) as u32));
        }
    }
}

impl Sequence {
    /// Whether all but its last, generated token has run.
    fn decoding(&self) -> bool {
        self.tokens.len() > self.prompt_len
    }

    /// Chooses the next token from row `index` of a step's output.
    fn take(&mut self, output: &Output, index: usize, context: usize) -> Event {
        let choice = match output {
            Output::Logits(rows) => self.sampler.pick(&rows[index]),
            Output::Tokens(tokens) => self.sampler.chosen(tokens[index]),
            Output::Nothing => Err(Error::request("step: no output for a sampled row")),
        };
        let choice = match choice {
            Ok(choice) => choice,
            Err(error) => {
                let finish = Some(Finish::Failed(error));
                return Event { id: self.id, choice: None, finish, cached: self.cached };
            }
        };
        let ran = self.tokens.len();
        self.tokens.push(choice.token);
        let generated = self.tokens.len() - self.prompt_len;
        let finish = if self.stop_ids.contains(&choice.token) {
            Some(Finish::StopToken)
        } else if generated >= self.max_tokens || ran >= context {
            Some(Finish::Length)
        } else {
            None
        };
        Event { id: self.id, choice: Some(choice), finish, cached: self.cached }
    }
}
