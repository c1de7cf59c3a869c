//! Drives the engine until replies are done, step by step, and tells what happens as it happens.
//!
//! Whoever runs it decides how to wait for a step and what happens between two of them: the terminal looks at Ctrl-C,
//! the browser lets its page speak.

use std::time::Duration;

use serde::Serialize;

use crate::engine::{Engine, Event, Finish, Request, SequenceId};
use crate::error::{Error, Result};
use crate::reply::{ReplyDelta, ReplyStream};
use crate::sampling::Choice;

/// Time since some moment that stays the same. Not every target has a clock in the standard library.
pub type Clock = fn() -> Duration;

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// The model ended it: an end token, or a stop string.
    Stop,
    /// The token limit or the context was reached.
    Length,
    /// Whoever asked for it asked for its end.
    Cancelled,
}

/// What a reply cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Prompt tokens that were run.
    pub prefill_tokens: usize,
    /// Prompt tokens before them whose state was there already.
    pub cached_tokens: usize,
    /// Time until the first token was there.
    pub prefill: Duration,
    /// Tokens written.
    pub decode_tokens: usize,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Why the reply ended.
    pub stop: Stop,
}

/// [`Stats`] as JSON carries them; a speed is `null` where there was nothing to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    prefill_tokens: usize,
    cached_tokens: usize,
    prefill_seconds: f64,
    prefill_tokens_per_second: Option<f64>,
    decode_tokens: usize,
    decode_seconds: f64,
    decode_tokens_per_second: Option<f64>,
}

impl From<&Stats> for Usage {
    fn from(stats: &Stats) -> Self {
        Self {
            prefill_tokens: stats.prefill_tokens,
            cached_tokens: stats.cached_tokens,
            prefill_seconds: stats.prefill.as_secs_f64(),
            prefill_tokens_per_second: tokens_per_second(stats.prefill_tokens, stats.prefill),
            decode_tokens: stats.decode_tokens,
            decode_seconds: stats.decode.as_secs_f64(),
            decode_tokens_per_second: tokens_per_second(stats.decode_tokens, stats.decode),
        }
    }
}

/// Tokens a second, when there were tokens and time enough to tell.
pub fn tokens_per_second(tokens: usize, time: Duration) -> Option<f64> {
    let tokens = f64::from(u32::try_from(tokens).unwrap_or(u32::MAX));
    let speed = tokens / time.as_secs_f64();
    (tokens > 0.0 && speed.is_finite()).then_some(speed)
}

/// News of one reply. The index counts the requests from 0.
pub enum News<'a> {
    /// A token was chosen.
    Token(usize, &'a Choice),
    /// Text became final.
    Text(usize, &'a ReplyDelta),
    /// The reply ended.
    Done(usize, &'a Stats),
}

/// Where news go.
pub type Sink<'a, E> = &'a mut dyn FnMut(News<'_>) -> std::result::Result<(), E>;

/// Replies being generated together.
pub struct Replies {
    replies: Vec<Reply>,
    clock: Clock,
}

impl Replies {
    /// Submits `requests`, each with the stream of its text.
    ///
    /// # Errors
    /// As [`Engine::submit`]; none of the requests is then left in the engine.
    pub fn start(
        engine: &mut Engine,
        requests: Vec<(Request, ReplyStream)>,
        clock: Clock,
    ) -> Result<Self> {
        let mut started = Self { replies: Vec::with_capacity(requests.len()), clock };
        for (request, stream) in requests {
            let prompt_tokens = request.prompt.len();
            match engine.submit(request) {
                Ok(id) => started.replies.push(Reply::new(id, stream, prompt_tokens, clock())),
                Err(error) => {
                    started.leave(engine);
                    return Err(error);
                }
            }
        }
        Ok(started)
    }

    /// Whether every reply has ended.
    pub fn done(&self) -> bool {
        self.replies.iter().all(|r| r.done)
    }

    /// Runs one step of the engine.
    ///
    /// # Errors
    /// Those of the engine and of `news`; the replies are then to be left.
    pub async fn step<E: From<Error>>(
        &mut self,
        engine: &mut Engine,
        news: Sink<'_, E>,
    ) -> std::result::Result<(), E> {
        let report = engine.step().await?;
        for event in report.events {
            let found =
                self.replies.iter_mut().enumerate().find(|(_, r)| r.id == event.id && !r.done);
            let Some((index, reply)) = found else { continue };
            if reply.take(index, event, self.clock, news)? {
                engine.cancel(reply.id);
            }
        }
        Ok(())
    }

    /// Ends what is not done as cancelled.
    ///
    /// # Errors
    /// Those of `news`.
    pub fn cancel<E>(
        &mut self,
        engine: &mut Engine,
        news: Sink<'_, E>,
    ) -> std::result::Result<(), E> {
        for (index, reply) in self.replies.iter_mut().enumerate().filter(|(_, r)| !r.done) {
            engine.cancel(reply.id);
            reply.end(index, Stop::Cancelled, news)?;
        }
        Ok(())
    }

    /// Takes what is not done out of the engine.
    pub fn leave(&mut self, engine: &mut Engine) {
        for reply in self.replies.iter_mut().filter(|r| !r.done) {
            engine.cancel(reply.id);
            reply.done = true;
        }
    }
}

/// One reply being generated.
struct Reply {
    id: SequenceId,
    stream: ReplyStream,
    stats: Stats,
    started: Duration,
    first: Option<Duration>,
    done: bool,
}

impl Reply {
    fn new(id: SequenceId, stream: ReplyStream, prefill_tokens: usize, started: Duration) -> Self {
        let stats = Stats {
            prefill_tokens,
            cached_tokens: 0,
            prefill: Duration::ZERO,
            decode_tokens: 0,
            decode: Duration::ZERO,
            stop: Stop::Stop,
        };
        Self { id, stream, stats, started, first: None, done: false }
    }

    /// Takes one token; whether the reply ended by its text, so that the engine must be told.
    fn take<E: From<Error>>(
        &mut self,
        index: usize,
        event: Event,
        clock: Clock,
        news: Sink<'_, E>,
    ) -> std::result::Result<bool, E> {
        if let Some(Finish::Failed(error)) = event.finish {
            return Err(error.into());
        }
        let Some(choice) = event.choice else { return Ok(false) };
        self.count(event.cached, clock());
        news(News::Token(index, &choice))?;
        if event.finish == Some(Finish::StopToken) {
            self.end(index, Stop::Stop, news)?;
            return Ok(false);
        }
        let delta = self.stream.push(choice.token);
        news(News::Text(index, &delta))?;
        if delta.stop.is_some() {
            self.finish_stats(Stop::Stop);
            news(News::Done(index, &self.stats))?;
            return Ok(true);
        }
        if event.finish == Some(Finish::Length) {
            self.end(index, Stop::Length, news)?;
        }
        Ok(false)
    }

    /// The first token ends the prefill; the others are decode.
    fn count(&mut self, cached: usize, now: Duration) {
        match self.first {
            None => {
                self.stats.prefill = now.saturating_sub(self.started);
                self.stats.cached_tokens = cached;
                self.stats.prefill_tokens -= cached;
                self.first = Some(now);
            }
            Some(first) => {
                self.stats.decode_tokens += 1;
                self.stats.decode = now.saturating_sub(first);
            }
        }
    }

    /// Shows what was held back and the end.
    fn end<E>(
        &mut self,
        index: usize,
        stop: Stop,
        news: Sink<'_, E>,
    ) -> std::result::Result<(), E> {
        let delta = self.stream.finish();
        self.finish_stats(stop);
        news(News::Text(index, &delta))?;
        news(News::Done(index, &self.stats))
    }

    fn finish_stats(&mut self, stop: Stop) {
        self.stats.stop = stop;
        self.done = true;
    }
}
