//! What happens to a template's source before the engine compiles it.
//!
//! The engine recurses over expressions when it compiles them and over nested lists when it drops,
//! prints or compares them, so a hostile template could overflow the stack in spite of limited
//! fuel. Here expressions are bounded in length and nesting, and every `set`, the one way to build
//! deeper values step by step, is routed through a filter that bounds the depth of the value.
//! `{% generation %}`, which marks the assistant's part for training masks, is removed.

use crate::error::{Error, Result};

/// The filter that every assigned value goes through.
pub(super) const DEPTH_FILTER: &str = "limited_depth";
const MAX_TOKENS: usize = 800;
const MAX_NESTING: usize = 16;
const MAX_BRANCHES: usize = 200;

/// The source to compile, with the same line numbers.
pub(super) fn prepared(source: &str) -> Result<String> {
    let mut output = String::with_capacity(source.len());
    let mut branches = 0;
    let mut at = 0;
    while let Some(found) = next_opening(&source[at..]) {
        let start = at + found;
        output.push_str(&source[at..start]);
        let rest = &source[start..];
        if rest.starts_with("{#") {
            let length = rest.find("#}").map_or(rest.len(), |end| end + "#}".len());
            output.push_str(&rest[..length]);
            at = start + length;
            continue;
        }
        let tag = Tag::scan(rest).map_err(|what| refused(source, start, &what))?;
        branches += usize::from(tag.word == "elif");
        if branches > MAX_BRANCHES {
            return Err(refused(source, start, &format!("more than {MAX_BRANCHES} elif branches")));
        }
        output.push_str(&tag.rewritten().map_err(|what| refused(source, start, &what))?);
        at = start + tag.text.len();
    }
    output.push_str(&source[at..]);
    Ok(output)
}

fn refused(source: &str, at: usize, what: &str) -> Error {
    let line = source[..at].matches('\n').count() + 1;
    Error::text(format!("chat template: {what} (line {line})"))
}

fn next_opening(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    bytes.windows(2).position(|pair| matches!(pair, b"{{" | b"{%" | b"{#"))
}

/// One `{{ ... }}` or `{% ... %}`.
struct Tag<'a> {
    text: &'a str,
    /// What follows `{%` and its `-` or `+`; nothing for `{{`.
    word: &'a str,
    /// Where the value of a `set` starts: after its `=`.
    value: Option<usize>,
    /// Where the closing `-%}` starts.
    close: usize,
}

impl<'a> Tag<'a> {
    fn scan(rest: &'a str) -> std::result::Result<Self, String> {
        let mut scanner = Scanner { rest, block: rest.starts_with("{%"), ..Scanner::default() };
        scanner.at = 2;
        while !scanner.closed()? {
            scanner.step()?;
        }
        let end = scanner.at + 2;
        let inside = &rest[2..scanner.at];
        let close = scanner.at - usize::from(inside.len() > 1 && inside.ends_with(['-', '+']));
        let word = inside.trim_start_matches(['-', '+']).trim_start();
        let word =
            word.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let word = if scanner.block { word } else { "" };
        Ok(Self { text: &rest[..end], word, value: scanner.assignment, close })
    }

    fn rewritten(&self) -> std::result::Result<String, String> {
        let control = |text: &str, at: usize| {
            text.get(at..=at)
                .filter(|control| matches!(*control, "-" | "+"))
                .unwrap_or_default()
                .to_owned()
        };
        match (self.word, self.value) {
            ("raw", _) => Err("raw blocks are not supported".to_owned()),
            ("generation" | "endgeneration", _) => {
                let lines = "\n".repeat(self.text.matches('\n').count());
                Ok(format!(
                    "{{#{}{lines} {}#}}",
                    control(self.text, 2),
                    control(self.text, self.close)
                ))
            }
            ("set", Some(value)) => {
                let (target, rest) = self.text.split_at(value);
                let (value, close) = rest.split_at(self.close - value);
                Ok(format!("{target} ({value})|{DEPTH_FILTER} {close}"))
            }
            _ => Ok(self.text.to_owned()),
        }
    }
}

#[derive(Default)]
struct Scanner<'a> {
    rest: &'a str,
    block: bool,
    at: usize,
    tokens: usize,
    nesting: usize,
    braces: usize,
    assignment: Option<usize>,
}

impl Scanner<'_> {
    /// Whether the closing delimiter is next.
    fn closed(&self) -> std::result::Result<bool, String> {
        if self.at >= self.rest.len() {
            return Err("a tag is not closed".to_owned());
        }
        let close = if self.block { "%}" } else { "}}" };
        Ok(self.rest[self.at..].starts_with(close) && (self.block || self.braces == 0))
    }

    /// Past one token or one character of white space.
    fn step(&mut self) -> std::result::Result<(), String> {
        let rest = &self.rest[self.at..];
        let Some(c) = rest.chars().next() else { return Ok(()) };
        let length = match c {
            '\'' | '"' => string_length(rest, c)?,
            '#' => return Err("`#` inside a tag".to_owned()),
            _ if c.is_alphanumeric() || c == '_' => {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            _ => c.len_utf8(),
        };
        match c {
            '(' | '[' | '{' => {
                self.nesting += 1;
                self.braces += usize::from(c == '{');
            }
            ')' | ']' | '}' => {
                self.nesting = self.nesting.saturating_sub(1);
                self.braces = self.braces.saturating_sub(usize::from(c == '}'));
            }
            '=' if self.nesting == 0 && self.assignment.is_none() => {
                self.assignment = Some(self.at + 1)
            }
            _ => {}
        }
        self.tokens += usize::from(!c.is_whitespace());
        self.at += length;
        if self.tokens > MAX_TOKENS {
            return Err(format!("a tag of more than {MAX_TOKENS} tokens"));
        }
        if self.nesting > MAX_NESTING {
            return Err(format!("brackets nested deeper than {MAX_NESTING}"));
        }
        Ok(())
    }
}

/// The length of the string literal that `rest` starts with, quotes included.
fn string_length(rest: &str, quote: char) -> std::result::Result<usize, String> {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => {
                let length = at + 1;
                // Were the engine to end the tag elsewhere, a tag could hide in what is a string here.
                if rest[..length].contains("{%") {
                    return Err("`{%` inside a string".to_owned());
                }
                return Ok(length);
            }
            _ => {}
        }
    }
    Err("a string is not closed".to_owned())
}
