//! `whipsnake generate`: plain continuation of one prompt, or of many at once.

use std::io::Write;

use whipsnake_core::engine::{Engine, Request};
use whipsnake_core::reply::ReplyStream;
use whipsnake_core::sampling::Choice;
use whipsnake_core::tokenizer::{Special, Tokenizer};

use crate::args::GenerateArgs;
use crate::input;
use crate::interrupt::Interrupt;
use crate::output::{Event, Output, Stats, Stop, TokenLogprob, Usage, summary};
use crate::replies::{self, News};
use crate::runtime::{self, Model, Room};

/// Most sequences of a batch that run at once.
const MAX_SLOTS: usize = 32;

/// Runs the command.
pub fn run(args: &GenerateArgs, quiet: bool) -> anyhow::Result<()> {
    let prompts = prompts(args)?;
    let model = Model::open(&args.model)?;
    let tokenizer = model.tokenizer()?;
    let requests = requests(args, &model, &tokenizer, &prompts)?;
    let slots = prompts.len().min(MAX_SLOTS);
    let context = args.context.context.unwrap_or_else(|| needed(&requests, &model));
    let room = Room { slots, context, rows: args.context.prefill_chunk };
    let session = runtime::open_session(&model.checkpoint, &args.backend, room, quiet)?;
    let mut engine = Engine::new(session, args.context.prefill_chunk.unwrap_or(usize::MAX));
    let interrupt = Interrupt::on_ctrl_c()?;
    let mut shown = Shown {
        output: Output::stdout(),
        tokenizer: &tokenizer,
        args,
        quiet,
        texts: vec![String::new(); prompts.len()],
        cancelled: false,
    };
    let busy = interrupt.busy();
    replies::run(&mut engine, requests, &interrupt, &mut |news| shown.take(news))?;
    drop(busy);
    shown.finish()
}

/// The prompts, from the command line, standard input or a file.
fn prompts(args: &GenerateArgs) -> anyhow::Result<Vec<String>> {
    match (&args.prompt, &args.batch) {
        (_, Some(path)) => input::batch(path),
        (Some(prompt), None) => {
            input::announce_stdin(prompt);
            Ok(vec![input::prompt(prompt)?])
        }
        (None, None) => Ok(Vec::new()),
    }
}

/// The context that the longest request can fill, as far as the model goes.
fn needed(requests: &[(Request, ReplyStream)], model: &Model) -> usize {
    let longest = requests
        .iter()
        .map(|(r, _)| r.prompt.len().saturating_add(r.max_tokens))
        .max()
        .unwrap_or(1);
    longest.min(model.checkpoint.spec().context)
}

fn requests(
    args: &GenerateArgs,
    model: &Model,
    tokenizer: &Tokenizer,
    prompts: &[String],
) -> anyhow::Result<Vec<(Request, ReplyStream)>> {
    let sampling = model.sampling(&args.sampling, args.logprobs)?;
    let mut requests = Vec::with_capacity(prompts.len());
    for (index, prompt) in prompts.iter().enumerate() {
        // Sequences of one batch draw apart, yet the same seed gives the same texts.
        let mut sampling = sampling.clone();
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index as u64));
        let request = Request {
            prompt: tokenizer.encode(prompt)?,
            sampling,
            entropy: runtime::entropy(),
            max_tokens: args.max_tokens,
            stop_ids: model.generation.eos_token_ids.clone(),
        };
        requests.push((request, ReplyStream::text(tokenizer, args.sampling.stop.clone())?));
    }
    Ok(requests)
}

/// Prints replies: one as it streams, many once each is done, or JSON events.
struct Shown<'a, W> {
    output: Output<W>,
    tokenizer: &'a Tokenizer,
    args: &'a GenerateArgs,
    quiet: bool,
    texts: Vec<String>,
    cancelled: bool,
}

impl<W: Write> Shown<'_, W> {
    fn take(&mut self, news: News<'_>) -> anyhow::Result<()> {
        match news {
            News::Token(index, choice) => self.token(index, choice),
            News::Text(index, delta) => self.text(index, &delta.content),
            News::Done(index, stats) => self.done(index, stats),
        }
    }

    fn streams(&self) -> bool {
        self.texts.len() == 1 && self.args.logprobs.is_none()
    }

    fn token(&mut self, index: usize, choice: &Choice) -> anyhow::Result<()> {
        let Some(logprob) = choice.log_probability else { return Ok(()) };
        let piece = |id: u32| self.tokenizer.decode(&[id], Special::Keep);
        let pieces: Vec<(u32, String, f32)> =
            choice.top.iter().map(|&(id, l)| (id, piece(id), l)).collect();
        let top: Vec<_> = pieces
            .iter()
            .map(|(token, piece, l)| TokenLogprob { token: *token, piece, logprob: *l })
            .collect();
        let text = piece(choice.token);
        let chosen = TokenLogprob { token: choice.token, piece: &text, logprob };
        if self.args.json {
            return self.output.json(&Event::Token { index, chosen, top: &top });
        }
        let rivals: Vec<String> =
            top.iter().map(|t| format!("{:?} {:.3}", t.piece, t.logprob)).collect();
        self.output.text(&format!("{:?} {:.3}  [{}]\n", text, logprob, rivals.join(", ")))
    }

    fn text(&mut self, index: usize, text: &str) -> anyhow::Result<()> {
        self.texts[index].push_str(text);
        match (self.args.json, text.is_empty()) {
            (_, true) => Ok(()),
            (true, false) => self.output.json(&Event::Text { index, text }),
            (false, false) if self.streams() => self.output.text(text),
            (false, false) => Ok(()),
        }
    }

    fn done(&mut self, index: usize, stats: &Stats) -> anyhow::Result<()> {
        self.cancelled |= stats.stop == Stop::Cancelled;
        let text = &self.texts[index];
        if self.args.json {
            let usage = Usage::from(stats);
            self.output.json(&Event::Done { index, text, stop: stats.stop, usage })?;
        } else if self.texts.len() > 1 {
            self.output.text(&format!("=== {index}\n{text}"))?;
            self.output.end_line()?;
        } else {
            self.output.end_line()?;
        }
        if !self.quiet && !self.args.json {
            eprintln!("{}", summary(stats));
        }
        Ok(())
    }

    fn finish(&self) -> anyhow::Result<()> {
        if self.cancelled { Err(anyhow::anyhow!("interrupted")) } else { Ok(()) }
    }
}
