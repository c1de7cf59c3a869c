//! A reply as it is shown and kept: reasoning dimmed, then the answer.

use std::io::Write;

use super::{Delta, Message, Role};
use crate::output::Output;

const DIM: &str = "\u{1b}[2m";
const PLAIN: &str = "\u{1b}[0m";
/// Sets reasoning off where nothing can be dimmed.
const THINKING: &str = "[thinking] ";

/// A reply under way.
pub struct Shown<'a, W> {
    output: &'a mut Output<W>,
    reasoning: String,
    content: String,
    thinking: bool,
    failed: Option<anyhow::Error>,
}

impl<'a, W: Write> Shown<'a, W> {
    /// Nothing yet.
    pub fn new(output: &'a mut Output<W>) -> Self {
        let (reasoning, content) = (String::new(), String::new());
        Self { output, reasoning, content, thinking: false, failed: None }
    }

    /// Shows and keeps a piece; false once showing has failed.
    pub fn take(&mut self, delta: Delta<'_>) -> bool {
        if self.failed.is_none() {
            self.failed = self.show(delta).err();
        }
        self.failed.is_none()
    }

    /// The whole reply, or why it could not be shown.
    pub fn finish(mut self) -> anyhow::Result<Message> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.thinking {
            self.end_thinking()?;
        }
        self.output.end_line()?;
        let reasoning = Some(self.reasoning).filter(|reasoning| !reasoning.is_empty());
        Ok(Message { role: Role::Assistant, content: self.content, reasoning })
    }

    fn show(&mut self, delta: Delta<'_>) -> anyhow::Result<()> {
        match delta {
            Delta::Reasoning("") | Delta::Content("") => Ok(()),
            Delta::Reasoning(text) => {
                if !self.thinking {
                    self.thinking = true;
                    self.output.raw(if self.output.styled() { DIM } else { THINKING })?;
                }
                self.reasoning.push_str(text);
                self.output.text(text)
            }
            Delta::Content(text) => {
                if self.thinking {
                    self.end_thinking()?;
                    self.output.end_line()?;
                    self.output.raw("\n")?;
                }
                self.content.push_str(text);
                self.output.text(text)
            }
        }
    }

    fn end_thinking(&mut self) -> anyhow::Result<()> {
        self.thinking = false;
        if self.output.styled() { self.output.raw(PLAIN) } else { Ok(()) }
    }
}
