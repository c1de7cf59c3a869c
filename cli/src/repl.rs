//! The chat at the terminal: reads lines, shows answers, keeps the conversation.
//!
//! It knows no engine: whoever implements [`Answer`] replies. With standard input not a terminal
//! each line is a turn, nothing but answers is printed, and the first error ends the program.

mod command;
mod conversation;
mod lines;
mod shown;

use std::io::{IsTerminal, Write};
use std::path::Path;

pub use conversation::{Conversation, Message, Role};
pub use lines::{Editor, Line, Lines, Piped};

use crate::failure;
use crate::interrupt::Interrupt;
use crate::output::{Closed, Output, Stats, Stop, summary};
use command::Command;
use shown::Shown;

/// A piece of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// The model thinks.
    Reasoning(&'a str),
    /// The model answers.
    Content(&'a str),
}

/// Whoever replies to a conversation.
pub trait Answer {
    /// Writes the next reply into `sink`, piece by piece. Looks at the session's [`Interrupt`]
    /// between steps and ends with [`Stop::Cancelled`] when it is pending.
    fn reply(
        &mut self,
        messages: &[Message],
        sink: &mut dyn FnMut(Delta<'_>),
    ) -> anyhow::Result<Stats>;
}

/// How a chat behaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the model is told first.
    pub system: Option<String>,
    /// A person is there: greet, explain, and go on after errors.
    pub interactive: bool,
    /// Tell each reply's speed.
    pub stats: bool,
}

/// A chat under way.
pub struct Repl<'a, W> {
    answer: &'a mut dyn Answer,
    output: Output<W>,
    notes: &'a mut dyn Write,
    interrupt: Interrupt,
    conversation: Conversation,
    options: Options,
}

/// A chat on standard input and output, with a line editor where a person is at both.
pub fn at_terminal(
    answer: &mut dyn Answer,
    interrupt: Interrupt,
    system: Option<String>,
    stats: bool,
) -> anyhow::Result<()> {
    let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let mut lines: Box<dyn Lines> = match interactive {
        true => Box::new(Editor::new()?),
        false => Box::new(Piped::new(std::io::stdin().lock())),
    };
    let options = Options { system, interactive, stats };
    let mut notes = std::io::stderr();
    Repl::new(answer, Output::stdout(), &mut notes, interrupt, options).run(&mut *lines)
}

impl<'a, W: Write> Repl<'a, W> {
    /// A chat that prints answers to `output` and everything else to `notes`.
    pub fn new(
        answer: &'a mut dyn Answer,
        output: Output<W>,
        notes: &'a mut dyn Write,
        interrupt: Interrupt,
        options: Options,
    ) -> Self {
        let mut conversation = Conversation::default();
        conversation.set_system(options.system.clone());
        Self { answer, output, notes, interrupt, conversation, options }
    }

    /// Reads and replies until the lines end or `/exit`.
    pub fn run(&mut self, lines: &mut dyn Lines) -> anyhow::Result<()> {
        if self.options.interactive {
            self.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves");
        }
        loop {
            let line = match lines.next_line()? {
                Line::Text(line) => line,
                Line::Cancelled => continue,
                Line::End => return Ok(()),
            };
            let done = command::parse(&line).and_then(|command| match command {
                Some(Command::Exit) => Ok(true),
                Some(command) => self.obey(command).map(|()| false),
                None => Ok(false),
            });
            match done {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if !self.options.interactive || error.is::<Closed>() => {
                    return Err(error);
                }
                Err(error) => self.note(failure::render(&error).trim_end()),
            }
        }
    }

    fn obey(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            Command::Say(text) => self.say(text)?,
            Command::Reset => {
                self.conversation.reset();
                self.note("the conversation begins anew");
            }
            Command::System(text) => {
                let told = if text.is_some() { "set" } else { "removed" };
                self.conversation.set_system(text);
                self.note(&format!("system message {told}"));
            }
            Command::Save(path) => {
                self.conversation.save(Path::new(&path))?;
                self.note(&format!("saved {} messages", self.conversation.messages().len()));
            }
            Command::Load(path) => {
                self.conversation = Conversation::load(Path::new(&path))?;
                self.note(&format!("loaded {} messages", self.conversation.messages().len()));
            }
            Command::Help => self.note(command::HELP),
            // The caller ends the loop.
            Command::Exit => {}
        }
        Ok(())
    }

    fn say(&mut self, text: String) -> anyhow::Result<()> {
        self.conversation.push(Message::new(Role::User, text));
        let busy = self.interrupt.busy();
        let mut shown = Shown::new(&mut self.output);
        let mut sink = |delta: Delta<'_>| {
            if !shown.take(delta) {
                self.interrupt.raise();
            }
        };
        let replied = self.answer.reply(self.conversation.messages(), &mut sink);
        drop(busy);
        let reply = match shown.finish() {
            Ok(reply) => reply,
            Err(error) => {
                self.conversation.pop();
                return Err(error);
            }
        };
        let stats = replied.inspect_err(|_| self.conversation.pop())?;
        let empty = reply.content.is_empty() && reply.reasoning.is_none();
        match empty && stats.stop == Stop::Cancelled {
            true => self.conversation.pop(),
            false => self.conversation.push(reply),
        }
        match stats.stop {
            Stop::Stop => {}
            Stop::Length => self.note("(the answer reached its limit)"),
            Stop::Cancelled => self.note("(stopped)"),
        }
        if self.options.stats {
            self.note(&summary(&stats));
        }
        Ok(())
    }

    fn note(&mut self, text: &str) {
        // Nowhere is left to report that standard error is closed.
        let _ = writeln!(self.notes, "{text}");
    }
}

#[cfg(test)]
mod tests;
