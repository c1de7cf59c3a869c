//! JSON as Python writes it: `Infinity` and `NaN` as bare words, numbers beyond an f64.

use crate::error::{Error, Result};
use serde_json::Value;

/// Longest configuration file that is read.
const MAX_BYTES: usize = 64 << 20;

/// Parses `bytes`; a number without an end becomes `{"__float__": "Infinity"}`, as newer files spell it.
///
/// # Errors
/// No valid JSON, with line and column, or an absurd length.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Value> {
    if bytes.len() > MAX_BYTES {
        return Err(Error::checkpoint(format!(
            "{name}: {} bytes, at most {MAX_BYTES} are read",
            bytes.len()
        )));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    serde_json::from_slice(&spell_out(bytes))
        .map_err(|e| Error::checkpoint(format!("{name}: not valid JSON: {e}")))
}

/// The value of a number in any of its spellings.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(s) => word(s),
        Value::Object(map) if map.len() == 1 => map.get("__float__")?.as_str().and_then(word),
        _ => None,
    }
}

fn word(text: &str) -> Option<f64> {
    // Rust parses `inf`, `Infinity` and `NaN` in any case, with a sign.
    text.trim().parse().ok()
}

/// Copies the text, replacing bare words and overflowing numbers outside strings.
fn spell_out(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let length = match first {
            b'"' => string_length(rest),
            b'-' | b'+' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => word_length(rest),
            _ => 1,
        };
        let (token, tail) = rest.split_at(length);
        match endless(token) {
            Some(name) => out.extend(format!("{{\"__float__\": \"{name}\"}}").bytes()),
            None => out.extend(token),
        }
        rest = tail;
    }
    out
}

/// Bytes of the string that `bytes` begin with, quotes included.
fn string_length(bytes: &[u8]) -> usize {
    let mut escaped = false;
    for (index, &byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    bytes.len()
}

fn word_length(bytes: &[u8]) -> usize {
    let part = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'.' | b'_');
    bytes.iter().position(|b| !part(b)).unwrap_or(bytes.len())
}

fn endless(token: &[u8]) -> Option<&'static str> {
    match token {
        b"Infinity" => return Some("Infinity"),
        b"-Infinity" => return Some("-Infinity"),
        b"NaN" => return Some("NaN"),
        [b'-' | b'0'..=b'9', ..] => {}
        _ => return None,
    }
    let value: f64 = std::str::from_utf8(token).ok()?.parse().ok()?;
    let spelled = token.iter().all(|b| !b.is_ascii_alphabetic() || matches!(b, b'e' | b'E'));
    match value {
        _ if !spelled => None,
        f64::INFINITY => Some("Infinity"),
        f64::NEG_INFINITY => Some("-Infinity"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinity_is_read_in_every_spelling() {
        for text in [
            "Infinity",
            "1e999",
            r#""Infinity""#,
            r#""inf""#,
            r#"{"__float__": "Infinity"}"#,
            "1E+4000",
        ] {
            let list = parse("config.json", format!("[0.0,{text} ]").as_bytes()).unwrap();
            assert_eq!(number(&list[1]), Some(f64::INFINITY), "{text}");
        }
        let list = parse("config.json", b"[-Infinity, NaN]").unwrap();
        assert_eq!(number(&list[0]), Some(f64::NEG_INFINITY));
        assert!(number(&list[1]).unwrap().is_nan());
    }

    #[test]
    fn words_inside_strings_stay() {
        let value = parse("config.json", br#"{"a \" Infinity": "x: NaN, 1e999"}"#).unwrap();
        assert_eq!(value[r#"a " Infinity"#], "x: NaN, 1e999");
    }
}
