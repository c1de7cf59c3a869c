//! `whipsnake chat`: the REPL over the engine.

use serde_json::{Map, Value};
use whipsnake_core::chat::{ChatTemplate, Conversation, shielded};
use whipsnake_core::engine::{Engine, Request};
use whipsnake_core::reply::ReplyStream;
use whipsnake_core::sampling::SamplingOptions;
use whipsnake_core::tokenizer::Tokenizer;

use crate::args::ChatArgs;
use crate::failure::Hinted;
use crate::interrupt::Interrupt;
use crate::output::Stats;
use crate::repl::{self, Answer, Delta, Message};
use crate::replies::{self, News};
use crate::runtime::{self, Model, Room};

/// Most tokens of a conversation where the user does not say: state and keys of a chat should fit any device.
const DEFAULT_CONTEXT: usize = 16 << 10;

/// Runs the command.
pub fn run(args: &ChatArgs, quiet: bool) -> anyhow::Result<()> {
    let model = Model::open(&args.model)?;
    let tokenizer = model.tokenizer()?;
    let template = template(&model, &tokenizer)?;
    let sampling = model.sampling(&args.sampling, None)?;
    let context =
        args.context.context.unwrap_or(DEFAULT_CONTEXT.min(model.checkpoint.spec().context));
    let room = Room { slots: 1, context, rows: args.context.prefill_chunk };
    let session = runtime::open_session(&model.checkpoint, &args.backend, room, quiet)?;
    let interrupt = Interrupt::on_ctrl_c()?;
    let mut chat = Chat {
        engine: Engine::new(session, args.context.prefill_chunk.unwrap_or(usize::MAX)),
        model,
        tokenizer,
        template,
        sampling,
        arguments: arguments(args),
        max_tokens: args.max_tokens,
        stops: args.sampling.stop.clone(),
        interrupt: interrupt.clone(),
    };
    repl::at_terminal(&mut chat, interrupt, args.system.clone(), !quiet)
}

/// The checkpoint's chat template.
fn template(model: &Model, tokenizer: &Tokenizer) -> anyhow::Result<ChatTemplate> {
    match ChatTemplate::of(&model.checkpoint, tokenizer)? {
        Some(template) => Ok(template),
        None => Err(Hinted::new(format!("{} has no chat template", model.name))
            .hint("whipsnake generate, which writes on from plain text")
            .into()),
    }
}

fn arguments(args: &ChatArgs) -> Map<String, Value> {
    let mut arguments: Map<String, Value> =
        args.template_arg.iter().map(|a| (a.key.clone(), a.value.clone())).collect();
    if let Some(thinking) = args.thinking() {
        arguments.insert("enable_thinking".into(), thinking.into());
    }
    arguments
}

struct Chat {
    engine: Engine,
    model: Model,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    sampling: SamplingOptions,
    arguments: Map<String, Value>,
    max_tokens: usize,
    stops: Vec<String>,
    interrupt: Interrupt,
}

impl Answer for Chat {
    fn reply(
        &mut self,
        messages: &[Message],
        sink: &mut dyn FnMut(Delta<'_>),
    ) -> anyhow::Result<Stats> {
        let messages = shielded(&serde_json::to_value(messages)?, &self.tokenizer);
        let rendered = self.template.render(&Conversation {
            messages: &messages,
            tools: None,
            arguments: &self.arguments,
            add_generation_prompt: true,
            now: now(),
        })?;
        let request = Request {
            prompt: self.tokenizer.encode_chat(&rendered)?,
            sampling: self.sampling.clone(),
            entropy: runtime::entropy(),
            max_tokens: self.max_tokens,
            stop_ids: self.model.generation.eos_token_ids.clone(),
        };
        let stream = ReplyStream::chat(&self.tokenizer, self.stops.clone(), &rendered)?;
        let mut last = None;
        replies::run(&mut self.engine, vec![(request, stream)], &self.interrupt, &mut |news| {
            match news {
                News::Text(_, delta) => {
                    sink(Delta::Reasoning(&delta.reasoning));
                    sink(Delta::Content(&delta.content));
                }
                News::Done(_, stats) => last = Some(*stats),
                News::Token(..) => {}
            }
            Ok(())
        })?;
        last.ok_or_else(|| anyhow::anyhow!("the reply did not end"))
    }
}

/// Seconds since 1970, for templates that print the date.
fn now() -> Option<i64> {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(elapsed.as_secs()).ok()
}
