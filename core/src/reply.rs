//! From generated tokens to what a person reads: text, stop strings, reasoning.

use crate::error::Result;
use crate::reasoning::{ReasoningParser, Split};
use crate::stop::StopStrings;
use crate::tokenizer::{Detokenizer, Special, Tokenizer};

/// Text that became final with one token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyDelta {
    /// What the model thinks.
    pub reasoning: String,
    /// What the model says.
    pub content: String,
    /// The stop string that ended the reply.
    pub stop: Option<String>,
}

/// Turns the tokens of one sequence into deltas that never break UTF-8 and never show a stop string.
pub struct ReplyStream {
    detokenizer: Detokenizer,
    stops: StopStrings,
    reasoning: Option<ReasoningParser>,
}

impl ReplyStream {
    /// A stream of plain text: what follows a prompt given as it is.
    ///
    /// # Errors
    /// A stop string is empty, too long, or one of too many.
    pub fn text(tokenizer: &Tokenizer, stops: Vec<String>) -> Result<Self> {
        let detokenizer = tokenizer.detokenizer(Special::Skip);
        Ok(Self { detokenizer, stops: StopStrings::new(stops)?, reasoning: None })
    }

    /// A stream of a chat turn that follows `rendered`, the prompt as the template wrote it.
    ///
    /// # Errors
    /// As [`ReplyStream::text`].
    pub fn chat(tokenizer: &Tokenizer, stops: Vec<String>, rendered: &str) -> Result<Self> {
        let reasoning = Some(ReasoningParser::new(rendered));
        Ok(Self { reasoning, ..Self::text(tokenizer, stops)? })
    }

    /// The next token. Once a delta names a stop, the reply is over.
    pub fn push(&mut self, token: u32) -> ReplyDelta {
        let text = self.detokenizer.push(token);
        let passed = self.stops.push(&text);
        let mut delta = self.split(&passed.text);
        delta.stop = passed.stop;
        delta
    }

    /// What was held back, once no token follows.
    pub fn finish(&mut self) -> ReplyDelta {
        let rest = self.detokenizer.finish();
        let passed = self.stops.push(&rest);
        let mut text = passed.text;
        if passed.stop.is_none() {
            text.push_str(&self.stops.finish());
        }
        let mut delta = self.split(&text);
        if let Some(parser) = &mut self.reasoning {
            let Split { reasoning, content } = parser.finish();
            delta.reasoning.push_str(&reasoning);
            delta.content.push_str(&content);
        }
        delta.stop = passed.stop;
        delta
    }

    fn split(&mut self, text: &str) -> ReplyDelta {
        match &mut self.reasoning {
            None => ReplyDelta { content: text.to_string(), ..ReplyDelta::default() },
            Some(parser) => {
                let Split { reasoning, content } = parser.push(text);
                ReplyDelta { reasoning, content, stop: None }
            }
        }
    }
}
