//! What a command prints: text as it arrives, a line of speed, JSON lines for scripts.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use whipsnake_core::replies::tokens_per_second;
pub use whipsnake_core::replies::{Stats, Stop, Usage};

/// Whoever read standard output has left; see [`crate::failure::exit`].
#[derive(Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl Error for Closed {}

/// One line: `prefill 17 tokens, 4,210 tok/s; decode 64 tokens, 1,310 tok/s`.
pub fn summary(stats: &Stats) -> String {
    let part = |name, tokens, time| {
        let noun = if tokens == 1 { "token" } else { "tokens" };
        let speed = match tokens_per_second(tokens, time) {
            Some(speed) => format!(", {} tok/s", grouped(speed)),
            None => String::new(),
        };
        format!("{name} {} {noun}{speed}", thousands(&tokens.to_string()))
    };
    let prefill = part("prefill", stats.prefill_tokens, stats.prefill);
    format!("{prefill}; {}", part("decode", stats.decode_tokens, stats.decode))
}

/// A speed for reading: one decimal below ten, thousands in groups above.
fn grouped(speed: f64) -> String {
    if speed < 10.0 { format!("{speed:.1}") } else { thousands(&format!("{speed:.0}")) }
}

/// Commas between groups of three digits.
pub fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// One line of `--json` output.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Event<'a> {
    /// Text that became final.
    Text {
        /// Which prompt of the batch, from 0.
        index: usize,
        /// The new text.
        text: &'a str,
    },
    /// Reasoning that became final.
    Reasoning {
        /// Which prompt of the batch, from 0.
        index: usize,
        /// The new text.
        text: &'a str,
    },
    /// One sampled token, when log-probabilities were asked for.
    Token {
        /// Which prompt of the batch, from 0.
        index: usize,
        /// The token that was chosen.
        #[serde(flatten)]
        chosen: TokenLogprob<'a>,
        /// The likeliest tokens, best first.
        top: &'a [TokenLogprob<'a>],
    },
    /// The end of one sequence.
    Done {
        /// Which prompt of the batch, from 0.
        index: usize,
        /// The whole text.
        text: &'a str,
        /// Why it ended.
        stop: Stop,
        /// What it cost.
        usage: Usage,
    },
}

/// A token and the natural logarithm of its probability.
#[derive(Clone, Debug, Serialize)]
pub struct TokenLogprob<'a> {
    /// Its id.
    pub token: u32,
    /// Its text alone; bytes that are no text of their own are replaced.
    pub piece: &'a str,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// A place for text and JSON lines that passes everything on at once.
pub struct Output<W> {
    writer: W,
    terminal: bool,
    line_open: bool,
}

impl Output<io::StdoutLock<'static>> {
    /// Standard output.
    pub fn stdout() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self::new(stdout.lock(), terminal)
    }
}

impl<W: Write> Output<W> {
    /// A writer; on a terminal, control characters of a model's text are made harmless.
    pub fn new(writer: W, terminal: bool) -> Self {
        Self { writer, terminal, line_open: false }
    }

    /// Whether escapes may be used: a terminal, and `NO_COLOR` is unset or empty.
    pub fn styled(&self) -> bool {
        self.terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Text from a model or a person, shown at once.
    pub fn text(&mut self, text: &str) -> anyhow::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.line_open = !text.ends_with('\n');
        let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
        match self.terminal && text.contains(harmful) {
            true => self.write(text.replace(harmful, "\u{fffd}").as_bytes()),
            false => self.write(text.as_bytes()),
        }
    }

    /// The program's own text with its escapes, shown at once.
    pub fn raw(&mut self, text: &str) -> anyhow::Result<()> {
        self.write(text.as_bytes())
    }

    /// Ends the line, if one is open.
    pub fn end_line(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.line_open) { self.write(b"\n") } else { Ok(()) }
    }

    /// One value on a line of its own.
    pub fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.write(&line)
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.writer.write_all(bytes).and_then(|()| self.writer.flush());
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => anyhow::Error::new(Closed),
            _ => anyhow::Error::new(error).context("cannot write to standard output"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn stats(prefill_tokens: usize, decode_tokens: usize, decode_ms: u64) -> Stats {
        let (prefill, decode) = (Duration::from_millis(4), Duration::from_millis(decode_ms));
        let stop = Stop::Length;
        Stats { prefill_tokens, cached_tokens: 0, prefill, decode_tokens, decode, stop }
    }

    #[test]
    fn the_summary_is_one_line_with_grouped_thousands() {
        let line = "prefill 17 tokens, 4,250 tok/s; decode 1,064 tokens, 1,064 tok/s";
        assert_eq!(summary(&stats(17, 1064, 1000)), line);
        let line = "prefill 1 token, 250 tok/s; decode 3 tokens, 1.5 tok/s";
        assert_eq!(summary(&stats(1, 3, 2000)), line);
    }

    #[test]
    fn a_speed_that_cannot_be_told_is_left_out() {
        assert_eq!(summary(&stats(0, 1, 0)), "prefill 0 tokens; decode 1 token");
    }

    #[test]
    fn thousands_are_grouped_from_the_right() {
        let all = ["1", "12", "123", "1234", "123456", "1234567"].map(thousands);
        assert_eq!(all, ["1", "12", "123", "1,234", "123,456", "1,234,567"]);
    }

    #[test]
    fn events_are_json_lines() {
        let mut bytes = Vec::new();
        let mut output = Output::new(&mut bytes, false);
        let top = [TokenLogprob { token: 7, piece: "é", logprob: -0.5 }];
        output.json(&Event::Text { index: 0, text: "a\n" }).unwrap();
        output.json(&Event::Token { index: 1, chosen: top[0].clone(), top: &top }).unwrap();
        let usage = Usage::from(&stats(17, 0, 0));
        output.json(&Event::Done { index: 0, text: "", stop: Stop::Stop, usage }).unwrap();
        let lines = r#"{"type":"text","index":0,"text":"a\n"}
{"type":"token","index":1,"token":7,"piece":"é","logprob":-0.5,"top":[{"token":7,"piece":"é","logprob":-0.5}]}
{"type":"done","index":0,"text":"","stop":"stop","usage":{"prefill_tokens":17,"cached_tokens":0,"prefill_seconds":0.004,"prefill_tokens_per_second":4250.0,"decode_tokens":0,"decode_seconds":0.0,"decode_tokens_per_second":null}}
"#;
        assert_eq!(String::from_utf8(bytes).unwrap(), lines);
    }

    #[test]
    fn a_models_escapes_reach_files_but_not_terminals() {
        for (terminal, shown) in [(true, "\u{fffd}[2J\tx\n"), (false, "\u{1b}[2J\tx\n")] {
            let mut bytes = Vec::new();
            Output::new(&mut bytes, terminal).text("\u{1b}[2J\tx\n").unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), shown);
        }
    }

    #[test]
    fn a_line_is_ended_once() {
        let mut bytes = Vec::new();
        let mut output = Output::new(&mut bytes, false);
        output.text("a").unwrap();
        output.end_line().unwrap();
        output.end_line().unwrap();
        assert_eq!(bytes, b"a\n");
    }

    #[test]
    fn a_reader_that_left_is_told_apart() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let error = Output::new(writer, false).text("a").unwrap_err();
        assert!(error.is::<Closed>());
    }
}
