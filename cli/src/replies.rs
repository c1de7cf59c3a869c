//! Runs replies to their ends, and lets Ctrl-C end them sooner.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use whipsnake_core::engine::{Engine, Request};
pub use whipsnake_core::replies::News;
use whipsnake_core::replies::Replies;
use whipsnake_core::reply::ReplyStream;

use crate::interrupt::Interrupt;

/// Submits `requests`, each with the stream of its text, and runs them to their ends.
///
/// Ctrl-C cancels all of them within one step.
pub fn run(
    engine: &mut Engine,
    requests: Vec<(Request, ReplyStream)>,
    interrupt: &Interrupt,
    news: &mut dyn FnMut(News<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut replies = Replies::start(engine, requests, clock)?;
    let result = drive(engine, &mut replies, interrupt, news);
    replies.leave(engine);
    result
}

fn drive(
    engine: &mut Engine,
    replies: &mut Replies,
    interrupt: &Interrupt,
    news: &mut dyn FnMut(News<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    while !replies.done() {
        if interrupt.pending() {
            return replies.cancel(engine, news);
        }
        pollster::block_on(replies.step(engine, news))?;
    }
    Ok(())
}

/// Time since the first call.
fn clock() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
