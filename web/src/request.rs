//! What a page asks for, as JSON, to what the engine runs.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use whipsnake_core::chat::{ChatTemplate, Conversation, shielded};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::engine::Request;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::generation::GenerationConfig;
use whipsnake_core::reply::ReplyStream;
use whipsnake_core::sampling::{SamplingOptions, SamplingWishes};
use whipsnake_core::tokenizer::Tokenizer;

/// One reply that is asked for: of `prompt`, `messages` exactly one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Asked {
    /// Text to write on from.
    prompt: Option<String>,
    /// A conversation to answer, in the form of the OpenAI API.
    messages: Option<Value>,
    /// Most tokens to write.
    #[serde(default = "default_max_tokens")]
    max_tokens: usize,
    /// Always the likeliest token.
    #[serde(default)]
    greedy: bool,
    /// Sampling that differs from the checkpoint's defaults.
    #[serde(default)]
    sampling: SamplingWishes,
    /// Texts that end the reply.
    #[serde(default)]
    stop: Vec<String>,
    /// Whether the model may think first; its template's default where absent.
    reasoning: Option<bool>,
    /// Go on after end tokens.
    #[serde(default)]
    ignore_end: bool,
    /// Seeds a draw without a seed.
    #[serde(default)]
    entropy: u64,
    /// Seconds since 1970, for templates that print the date.
    now: Option<i64>,
}

fn default_max_tokens() -> usize {
    256
}

/// The text side of a checkpoint.
pub(crate) struct Text {
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    pub generation: GenerationConfig,
}

impl Text {
    /// `None` where the checkpoint has no tokenizer; it then serves for logits alone.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let Some(tokenizer) = Tokenizer::of(checkpoint)? else { return Ok(None) };
        let template = ChatTemplate::of(checkpoint, &tokenizer)?;
        Ok(Some(Self { tokenizer, template, generation: GenerationConfig::of(checkpoint)? }))
    }

    /// The request and the stream of its text.
    pub(crate) fn request(&self, asked: Asked) -> Result<(Request, ReplyStream)> {
        let (prompt, stream) = match (&asked.prompt, &asked.messages) {
            (Some(prompt), None) => {
                let stream = ReplyStream::text(&self.tokenizer, asked.stop.clone())?;
                (self.tokenizer.encode(prompt)?, stream)
            }
            (None, Some(messages)) => self.chat(&asked, messages)?,
            _ => return Err(Error::request("want a prompt or messages, one of the two")),
        };
        let defaults = match asked.greedy {
            true => SamplingOptions::greedy(),
            false => self.generation.sampling(),
        };
        let stop_ids = match asked.ignore_end {
            true => BTreeSet::new(),
            false => self.generation.eos_token_ids.clone(),
        };
        let request = Request {
            prompt,
            sampling: asked.sampling.over(defaults),
            entropy: asked.entropy,
            max_tokens: asked.max_tokens,
            stop_ids,
        };
        Ok((request, stream))
    }

    fn chat(&self, asked: &Asked, messages: &Value) -> Result<(Vec<u32>, ReplyStream)> {
        let template = self.template.as_ref().ok_or_else(|| {
            Error::request("the model has no chat template; give a prompt instead of messages")
        })?;
        let mut arguments = Map::new();
        if let Some(reasoning) = asked.reasoning {
            arguments.insert("enable_thinking".into(), reasoning.into());
        }
        let rendered = template.render(&Conversation {
            messages: &shielded(messages, &self.tokenizer),
            tools: None,
            arguments: &arguments,
            add_generation_prompt: true,
            now: asked.now,
        })?;
        let stream = ReplyStream::chat(&self.tokenizer, asked.stop.clone(), &rendered)?;
        Ok((self.tokenizer.encode_chat(&rendered)?, stream))
    }
}
