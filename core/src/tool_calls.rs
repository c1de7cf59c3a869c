//! Tool calls in generated text, parsed while the text arrives.
//!
//! Two forms are understood inside `<tool_call>` ... `</tool_call>`: XML
//! (`<function=NAME><parameter=KEY>` value `</parameter></function>`, values typed by the tool's
//! schema) and JSON (`{"name": ..., "arguments": {...}}`, or a list of those). Arguments come out as
//! pieces of one JSON object for each call, as the OpenAI API streams them.

mod json;
mod schema;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::stop::held_suffix;
use json::{Head, ValueScanner};
use schema::{Kind, Schema};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// What a piece of text brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text outside tool calls.
    Content(String),
    /// Call number `index` (from 0) begins.
    Start {
        /// Its number.
        index: usize,
        /// The function's name.
        name: String,
    },
    /// The next part of a call's arguments, which together are JSON text.
    Arguments {
        /// The call's number.
        index: usize,
        /// The part.
        delta: String,
    },
    /// A call is complete. Calls that the text breaks off have no end.
    End {
        /// Its number.
        index: usize,
    },
}

/// Follows the tool calls of a text that arrives in pieces.
///
/// White space around tool calls is left out. What opens like a tool call and is none comes out as
/// content, so that no text is lost.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    schema: Schema,
    state: State,
    held: String,
    events: Vec<ToolEvent>,
    calls: usize,
    /// White space before an opening tag: text again if that opens no call.
    space: String,
    /// Nothing but white space came since the last call.
    after_call: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Content,
    /// After `<tool_call>` or `</function>`.
    Opened {
        fresh: bool,
    },
    /// Inside a function, between parameters.
    Function {
        name: String,
        first: bool,
    },
    /// Inside a parameter; text is streamed, other values are converted when whole.
    Parameter {
        name: String,
        kind: Kind,
        begun: bool,
    },
    /// Inside the arguments object of the JSON form.
    Arguments(ValueScanner),
    /// A JSON form that cannot be streamed: taken as a whole.
    Whole,
    /// Up to `</tool_call>` nothing of interest comes.
    Closing,
}

impl ToolCallParser {
    /// A parser for a model that was given `tools` in the form of the OpenAI API.
    pub fn new(tools: Option<&Value>) -> Self {
        Self {
            schema: Schema::new(tools),
            state: State::Content,
            held: String::new(),
            events: Vec::new(),
            calls: 0,
            space: String::new(),
            after_call: false,
        }
    }

    /// How many calls have begun.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Take the next piece of text.
    pub fn push(&mut self, delta: &str) -> Vec<ToolEvent> {
        self.held.push_str(delta);
        while self.step() {}
        std::mem::take(&mut self.events)
    }

    /// The text has ended.
    pub fn finish(&mut self) -> Vec<ToolEvent> {
        while matches!(self.state, State::Opened { fresh: true } | State::Whole) {
            self.not_a_call();
            while self.step() {}
        }
        match std::mem::replace(&mut self.state, State::Content) {
            State::Content if !self.after_call || !self.held.trim().is_empty() => {
                self.content_up_to(self.held.len())
            }
            State::Parameter { kind: Kind::Text, begun, .. } => {
                let text =
                    if begun { self.held.as_str() } else { self.held.trim_start_matches('\n') };
                let delta = json::escaped(text);
                self.arguments(delta);
            }
            _ => {}
        }
        self.held.clear();
        std::mem::take(&mut self.events)
    }

    /// One step; false where more text is needed.
    fn step(&mut self) -> bool {
        match self.state.clone() {
            State::Content => self.content(),
            State::Opened { fresh } => self.opened(fresh),
            State::Function { name, first } => self.function(&name, first),
            State::Parameter { name, kind: Kind::Text, begun } => self.text_parameter(name, begun),
            State::Parameter { name, kind: Kind::Json, .. } => self.json_parameter(name),
            State::Arguments(scanner) => self.json_arguments(scanner),
            State::Whole => self.whole(),
            State::Closing => self.closing(),
        }
    }

    fn content(&mut self) -> bool {
        if let Some(at) = self.held.find(OPEN) {
            let text = self.held[..at].trim_end().len();
            self.content_up_to(text);
            self.space = self.held.drain(..at - text).collect();
            self.held.drain(..OPEN.len());
            self.state = State::Opened { fresh: true };
            return true;
        }
        // White space may turn out to stand before a tool call.
        let tag = held_suffix(&self.held, &[OPEN]);
        let text = self.held[..self.held.len() - tag].trim_end().len();
        self.content_up_to(text);
        false
    }

    fn opened(&mut self, fresh: bool) -> bool {
        let rest = self.held.trim_start();
        if let Some(after) = rest.strip_prefix(FUNCTION) {
            let Some((name, after)) = after.split_once('>') else { return false };
            let (name, after) = (name.trim().to_owned(), after.to_owned());
            self.held = after;
            self.start(name.clone());
            self.arguments("{".to_owned());
            self.state = State::Function { name, first: true };
            return true;
        }
        if fresh && rest.starts_with('[') {
            self.state = State::Whole;
            return true;
        }
        if fresh && rest.starts_with('{') {
            return self.json_head();
        }
        if !fresh && rest.starts_with(CLOSE) {
            self.state = State::Closing;
            return true;
        }
        if FUNCTION.starts_with(rest) || (!fresh && CLOSE.starts_with(rest)) {
            return false;
        }
        if fresh {
            self.not_a_call();
        } else {
            self.state = State::Closing;
        }
        true
    }

    fn function(&mut self, name: &str, first: bool) -> bool {
        let rest = self.held.trim_start();
        if let Some(after) = rest.strip_prefix(PARAMETER) {
            let Some((key, after)) = after.split_once('>') else { return false };
            let (key, after) = (key.trim().to_owned(), after.to_owned());
            self.held = after;
            let kind = self.schema.kind(name, &key);
            let comma = if first { "" } else { ", " };
            let quote = if kind == Kind::Text { "\"" } else { "" };
            self.arguments(format!("{comma}\"{}\": {quote}", json::escaped(&key)));
            self.state = State::Parameter { name: name.to_owned(), kind, begun: false };
            return true;
        }
        for end in [FUNCTION_END, CLOSE] {
            if rest.starts_with(end) {
                let after = rest[if end == CLOSE { 0 } else { end.len() }..].to_owned();
                self.held = after;
                self.arguments("}".to_owned());
                self.end();
                self.state = State::Opened { fresh: false };
                return true;
            }
        }
        if [PARAMETER, FUNCTION_END, CLOSE].iter().any(|tag| tag.starts_with(rest)) {
            return false;
        }
        // Stray text between parameters: on to the next tag.
        let skip = self.held.len() - rest.len() + 1;
        let at = self.held.char_indices().find(|(at, c)| *at >= skip && *c == '<');
        self.held = at.map_or_else(String::new, |(at, _)| self.held[at..].to_owned());
        true
    }

    fn text_parameter(&mut self, name: String, begun: bool) -> bool {
        if !begun && self.held.is_empty() {
            return false;
        }
        if !begun && self.held.starts_with('\n') {
            self.held.remove(0);
        }
        if let Some(at) = self.held.find(PARAMETER_END) {
            let text = &self.held[..at];
            let delta = json::escaped(text.strip_suffix('\n').unwrap_or(text)) + "\"";
            self.held.drain(..at + PARAMETER_END.len());
            self.arguments(delta);
            self.state = State::Function { name, first: false };
            return true;
        }
        let keep = held_suffix(&self.held, &[PARAMETER_END, "\n</parameter>"]);
        let delta = json::escaped(&self.held[..self.held.len() - keep]);
        self.held.drain(..self.held.len() - keep);
        self.arguments(delta);
        self.state = State::Parameter { name, kind: Kind::Text, begun: true };
        false
    }

    fn json_parameter(&mut self, name: String) -> bool {
        let Some(at) = self.held.find(PARAMETER_END) else { return false };
        let value = json::typed(self.held[..at].trim_matches('\n'));
        self.held.drain(..at + PARAMETER_END.len());
        self.arguments(value);
        self.state = State::Function { name, first: false };
        true
    }

    fn json_head(&mut self) -> bool {
        match json::head(&self.held) {
            Head::Partial => return false,
            Head::Other => self.state = State::Whole,
            Head::Arguments { name, start } => {
                self.held.drain(..start);
                self.start(name);
                self.state = State::Arguments(ValueScanner::default());
            }
        }
        true
    }

    fn json_arguments(&mut self, mut scanner: ValueScanner) -> bool {
        let (length, complete) = scanner.scan(&self.held);
        let delta = self.held[..length].to_owned();
        self.held.drain(..length);
        self.arguments(delta);
        if complete {
            self.end();
            self.state = State::Closing;
        } else {
            self.state = State::Arguments(scanner);
        }
        complete
    }

    fn whole(&mut self) -> bool {
        // The closing tag may stand inside a string: take the first that leaves valid JSON.
        let ends: Vec<usize> = self.held.match_indices(CLOSE).map(|(at, _)| at).collect();
        for at in &ends {
            let Some(calls) = json::calls(&self.held[..*at]) else { continue };
            self.held.drain(..*at);
            for (name, arguments) in calls {
                self.start(name);
                self.arguments(arguments);
                self.end();
            }
            self.state = State::Closing;
            return true;
        }
        let Some(first) = ends.first() else { return false };
        if json::open_string(&self.held[..*first]) {
            return false;
        }
        self.not_a_call();
        true
    }

    fn closing(&mut self) -> bool {
        if let Some(at) = self.held.find(CLOSE) {
            self.held.drain(..at + CLOSE.len());
            self.state = State::Content;
            return true;
        }
        let keep = held_suffix(&self.held, &[CLOSE]);
        self.held.drain(..self.held.len() - keep);
        false
    }

    /// The opening tag was text after all.
    fn not_a_call(&mut self) {
        self.state = State::Content;
        self.after_call = false;
        let space = std::mem::take(&mut self.space);
        self.events.push(ToolEvent::Content(space + OPEN));
    }

    fn content_up_to(&mut self, length: usize) {
        if length > 0 {
            let text = self.held.drain(..length).collect();
            self.after_call = false;
            self.events.push(ToolEvent::Content(text));
        }
    }

    fn start(&mut self, name: String) {
        self.events.push(ToolEvent::Start { index: self.calls, name });
        self.calls += 1;
        self.space.clear();
        self.after_call = true;
    }

    fn arguments(&mut self, delta: String) {
        if !delta.is_empty() {
            self.events.push(ToolEvent::Arguments { index: self.calls - 1, delta });
        }
    }

    fn end(&mut self) {
        self.events.push(ToolEvent::End { index: self.calls - 1 });
    }
}
