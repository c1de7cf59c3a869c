//! The decoder section of `tokenizer.json`, compiled to the bytes that each token stands for.

use serde_json::Value;

use crate::error::{Error, Result};

/// How a token becomes bytes, and what the text of all tokens goes through.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Pieces {
    steps: Vec<Step>,
    /// At most so many of this character are taken off the start of the text.
    pub strip_start: Option<(char, usize)>,
    /// A file without a decoder joins its tokens with spaces.
    spaced: bool,
    /// Byte-fallback tokens: each byte that is not UTF-8 shows as one U+FFFD of its own.
    pub single_bytes: bool,
}

#[derive(Debug, PartialEq)]
enum Step {
    ByteLevel,
    ByteFallback,
    Replace { from: String, to: String },
    Metaspace { mark: char, first_bare: bool },
    Strip { content: char, start: usize, stop: usize },
}

impl Pieces {
    pub fn new(decoder: &Value) -> Result<Self> {
        let mut pieces = Self::default();
        if decoder.is_null() {
            pieces.spaced = true;
            return Ok(pieces);
        }
        let mut fused = false;
        pieces.add(decoder, &mut fused)?;
        pieces.single_bytes = pieces.steps.contains(&Step::ByteFallback);
        Ok(pieces)
    }

    /// The bytes of a token; `first` where no visible token came before it.
    pub fn piece(&self, token: &str, first: bool) -> Vec<u8> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::ByteLevel => return byte_level(&text).unwrap_or_else(|| text.into_bytes()),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return vec![byte];
                    }
                }
                Step::Replace { from, to } => text = text.replace(from, to),
                Step::Metaspace { mark, first_bare } if first && *first_bare => {
                    text.retain(|c| c != *mark)
                }
                Step::Metaspace { mark, .. } => text = text.replace(*mark, " "),
                Step::Strip { content, start, stop } => {
                    text = strip(&text, *content, *start, *stop)
                }
            }
        }
        if self.spaced && !first {
            text.insert(0, ' ');
        }
        text.into_bytes()
    }

    fn add(&mut self, decoder: &Value, fused: &mut bool) -> Result<()> {
        let kind = decoder.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind == "Sequence" {
            let parts = decoder.get("decoders").and_then(Value::as_array);
            let parts = parts.ok_or_else(|| refused("Sequence has no list of decoders"))?;
            return parts.iter().try_for_each(|part| self.add(part, fused));
        }
        if kind == "Fuse" {
            *fused = true;
            return Ok(());
        }
        if kind == "Strip" && *fused {
            return self.strip_text(decoder);
        }
        if *fused || self.steps.contains(&Step::ByteLevel) {
            return Err(refused(&format!("{kind} cannot follow a decoder that joins the tokens")));
        }
        self.steps.push(match kind {
            "ByteLevel" => Step::ByteLevel,
            "ByteFallback" => Step::ByteFallback,
            "Replace" => replace(decoder)?,
            "Metaspace" => metaspace(decoder)?,
            "Strip" => {
                let (content, start, stop) = strip_fields(decoder)?;
                Step::Strip { content, start, stop }
            }
            "" => return Err(refused("it has no type")),
            other => return Err(refused(&format!("{other} is not supported"))),
        });
        Ok(())
    }

    fn strip_text(&mut self, decoder: &Value) -> Result<()> {
        let (content, start, stop) = strip_fields(decoder)?;
        if stop != 0 || self.strip_start.is_some() {
            return Err(refused(
                "Strip after Fuse is supported once and at the start of the text only",
            ));
        }
        self.strip_start = Some((content, start));
        Ok(())
    }
}

fn refused(what: &str) -> Error {
    Error::text(format!(
        "tokenizer.json: decoder: {what}; supported are ByteLevel, ByteFallback, Metaspace, Replace, Strip, Fuse and Sequence"
    ))
}

fn replace(decoder: &Value) -> Result<Step> {
    let from =
        decoder.pointer("/pattern/String").and_then(Value::as_str).filter(|from| !from.is_empty());
    let to = decoder.get("content").and_then(Value::as_str);
    match (from, to) {
        (Some(from), Some(to)) => Ok(Step::Replace { from: from.to_owned(), to: to.to_owned() }),
        _ => Err(refused("Replace needs a String pattern and a content")),
    }
}

fn metaspace(decoder: &Value) -> Result<Step> {
    let mark = one_char(decoder, "replacement")?;
    let scheme = decoder.get("prepend_scheme").and_then(Value::as_str).unwrap_or("always");
    let prefix = decoder.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true);
    Ok(Step::Metaspace { mark, first_bare: prefix && scheme != "never" })
}

fn strip_fields(decoder: &Value) -> Result<(char, usize, usize)> {
    let count = |key: &str| {
        let count =
            decoder.get(key).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| refused(&format!("Strip has no count `{key}`")))
    };
    Ok((one_char(decoder, "content")?, count("start")?, count("stop")?))
}

fn one_char(decoder: &Value, key: &str) -> Result<char> {
    let mut chars = decoder.get(key).and_then(Value::as_str).unwrap_or_default().chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(refused(&format!("`{key}` is not a single character"))),
    }
}

fn strip(text: &str, content: char, start: usize, stop: usize) -> String {
    let lead = text.chars().take(start).take_while(|c| *c == content).count();
    let rest: Vec<char> = text.chars().skip(lead).collect();
    let tail = rest.iter().rev().take(stop).take_while(|c| **c == content).count();
    rest[..rest.len() - tail].iter().collect()
}

/// `<0xE2>` is the byte E2.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The bytes of a byte-level token, or nothing where a character is outside that alphabet (added
/// tokens are spelt as plain text).
fn byte_level(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}
