//! Chat templates: a conversation to the prompt text that a model was trained on.
//!
//! Templates are Jinja as transformers runs it (`apply_chat_template`): the same whitespace rules,
//! filters, functions and string methods. A template is untrusted: its size, its work, its depth
//! and its output are bounded, and it sees nothing but the conversation.

mod depth;
mod environment;
mod find;
mod json;
mod messages;
mod output;
mod prepare;
mod strings;
#[cfg(test)]
mod tests;
mod time;

use std::collections::BTreeMap;

use minijinja::value::Serde;
use minijinja::{Environment, Value as Variable};
use serde_json::{Map, Value};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
pub use find::{TemplateSource, choose_template, find_templates};
pub use messages::shielded;
use output::Bounded;

/// The largest template source that is read; published ones are below 30 KB.
pub const MAX_TEMPLATE_BYTES: usize = 512 << 10;
/// The longest prompt text that a template may render.
pub const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// About one unit an instruction, and one for each 64 bytes produced.
const FUEL: u64 = 4_000_000;
const RECURSION: usize = 100;
const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: BTreeMap<String, String>,
}

/// What a template renders.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// A list of messages in the form of the OpenAI API: `role`, `content` (a string, null, or a
    /// list of `{type: "text", text}`), `tool_calls`, `reasoning_content`, ...
    pub messages: &'a Value,
    /// The tools in the form of the OpenAI API.
    pub tools: Option<&'a Value>,
    /// Variables for the template, such as `enable_thinking` or `documents`.
    pub arguments: &'a Map<String, Value>,
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// What `strftime_now` tells: seconds since 1970 in the time zone to show. Without it the
    /// function is undefined, which templates that use it test for.
    pub now: Option<i64>,
}

impl ChatTemplate {
    /// The chat template of a checkpoint, where it has one.
    ///
    /// # Errors
    /// A file that should hold it is damaged, or the template does not compile.
    pub fn of(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        const FILE: &str = "chat_template.jinja";
        let file = |name: &str| checkpoint.file(name).map(|bytes| &bytes[..]);
        let jinja = file(FILE).map(std::str::from_utf8).transpose();
        let jinja = jinja.map_err(|_| Error::text(format!("{FILE}: not UTF-8")))?;
        let templates = find_templates(jinja, file("tokenizer_config.json"))?;
        choose_template(&templates, false)
            .map(|template| Self::new(&template.source, tokenizer.special_tokens()))
            .transpose()
    }

    /// Compile `source`; `special_tokens` (`bos_token`, ...) become variables.
    pub fn new(source: &str, special_tokens: &BTreeMap<String, String>) -> Result<Self> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(Error::text(format!(
                "chat template: {} bytes, at most {MAX_TEMPLATE_BYTES} are read",
                source.len()
            )));
        }
        let mut environment = environment::new(FUEL, RECURSION).map_err(|error| failed(&error))?;
        environment
            .add_template_owned(NAME, prepare::prepared(source)?)
            .map_err(|error| failed(&error))?;
        Ok(Self { environment, special_tokens: special_tokens.clone() })
    }

    /// The prompt text.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(|error| failed(&error))?;
        let mut output = Bounded::new(MAX_OUTPUT_BYTES);
        match template.render_captured_to(self.variables(conversation)?, &mut output) {
            Ok(_) => output.into_text(),
            Err(_) if output.overflowed() => Err(Error::text(format!(
                "chat template: the prompt is longer than {MAX_OUTPUT_BYTES} bytes; send a shorter conversation"
            ))),
            Err(error) => Err(failed(&error)),
        }
    }

    fn variables(&self, conversation: &Conversation<'_>) -> Result<Variable> {
        let messages = messages::normalised(conversation.messages)?;
        let mut variables: Vec<(String, Variable)> = vec![
            ("messages".to_owned(), Serde(&messages).into()),
            (
                "tools".to_owned(),
                conversation.tools.map_or_else(|| ().into(), |tools| Serde(tools).into()),
            ),
            ("documents".to_owned(), ().into()),
            ("add_generation_prompt".to_owned(), conversation.add_generation_prompt.into()),
        ];
        for (name, token) in &self.special_tokens {
            variables.push((name.clone(), token.as_str().into()));
        }
        for (name, value) in conversation.arguments {
            if matches!(name.as_str(), "messages" | "tools" | "add_generation_prompt") {
                return Err(Error::request(format!(
                    "chat template argument `{name}`: it is a field of the request itself; give it there"
                )));
            }
            variables.push((name.clone(), Serde(value).into()));
        }
        if let Some(now) = conversation.now {
            let function = move |format: &str| time::strftime(format, now);
            variables.push(("strftime_now".to_owned(), Variable::from_function(function)));
        }
        Ok(Variable::from_pairs(variables))
    }
}

/// What a template refused with `raise_exception`, or why it cannot run.
fn failed(error: &minijinja::Error) -> Error {
    let message = environment::raised(error);
    if let Some(message) = message {
        return Error::request(format!("chat template: {message}"));
    }
    if let minijinja::ErrorKind::OutOfFuel = error.kind() {
        return Error::text(format!(
            "chat template: it takes more than the {FUEL} steps that a template may take"
        ));
    }
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    Error::text(format!("chat template: {detail}{line}"))
}
