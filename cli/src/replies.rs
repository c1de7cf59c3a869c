//! Drives the engine until every reply is done, and tells what happens as it happens.

use std::time::{Duration, Instant};

use whipsnake_core::engine::{Engine, Event, Finish, Request, SequenceId};
use whipsnake_core::reply::{ReplyDelta, ReplyStream};
use whipsnake_core::sampling::Choice;

use crate::interrupt::Interrupt;
use crate::output::{Stats, Stop};

/// One reply being generated.
pub struct Reply {
    id: SequenceId,
    stream: ReplyStream,
    stats: Stats,
    started: Instant,
    first: Option<Instant>,
    done: bool,
}

/// News of one reply. `index` counts the requests from 0.
pub enum News<'a> {
    /// A token was chosen.
    Token(usize, &'a Choice),
    /// Text became final.
    Text(usize, &'a ReplyDelta),
    /// The reply ended.
    Done(usize, &'a Stats),
}

/// Submits `requests`, each with the stream of its text, and runs them to their ends.
///
/// Ctrl-C cancels all of them within one step.
pub fn run(
    engine: &mut Engine,
    requests: Vec<(Request, ReplyStream)>,
    interrupt: &Interrupt,
    news: &mut dyn FnMut(News<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut replies = Vec::with_capacity(requests.len());
    for (request, stream) in requests {
        let prefill_tokens = request.prompt.len();
        replies.push(Reply::new(engine.submit(request)?, stream, prefill_tokens));
    }
    let result = drive(engine, &mut replies, interrupt, news);
    for reply in replies.iter().filter(|r| !r.done) {
        engine.cancel(reply.id);
    }
    result
}

fn drive(
    engine: &mut Engine,
    replies: &mut [Reply],
    interrupt: &Interrupt,
    news: &mut dyn FnMut(News<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    while replies.iter().any(|r| !r.done) {
        if interrupt.pending() {
            for (index, reply) in replies.iter_mut().enumerate().filter(|(_, r)| !r.done) {
                engine.cancel(reply.id);
                reply.end(index, Stop::Cancelled, news)?;
            }
            return Ok(());
        }
        let report = pollster::block_on(engine.step())?;
        for event in report.events {
            let found = replies.iter_mut().enumerate().find(|(_, r)| r.id == event.id && !r.done);
            let Some((index, reply)) = found else { continue };
            if reply.take(index, event, news)? {
                engine.cancel(reply.id);
            }
        }
    }
    Ok(())
}

impl Reply {
    fn new(id: SequenceId, stream: ReplyStream, prefill_tokens: usize) -> Self {
        let zero = Duration::ZERO;
        let stats = Stats {
            prefill_tokens,
            prefill: zero,
            decode_tokens: 0,
            decode: zero,
            stop: Stop::Stop,
        };
        Self { id, stream, stats, started: Instant::now(), first: None, done: false }
    }

    /// Takes one token; whether the reply ended by its text, so that the engine must be told.
    fn take(
        &mut self,
        index: usize,
        event: Event,
        news: &mut dyn FnMut(News<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        if let Some(Finish::Failed(error)) = event.finish {
            return Err(error.into());
        }
        let Some(choice) = event.choice else { return Ok(false) };
        self.count();
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
    fn count(&mut self) {
        match self.first {
            None => {
                self.stats.prefill = self.started.elapsed();
                self.first = Some(Instant::now());
            }
            Some(first) => {
                self.stats.decode_tokens += 1;
                self.stats.decode = first.elapsed();
            }
        }
    }

    /// Shows what was held back and the end.
    fn end(
        &mut self,
        index: usize,
        stop: Stop,
        news: &mut dyn FnMut(News<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
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
