//! The pieces of JSON that tool calls are made of.

use serde_json::Value;

/// `text` as the inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A value that the schema says is not text: JSON, or Python's spelling of it, or else a string.
pub(super) fn typed(text: &str) -> String {
    let trimmed = text.trim();
    match trimmed {
        "True" => return "true".to_owned(),
        "False" => return "false".to_owned(),
        "None" => return "null".to_owned(),
        _ => {}
    }
    match serde_json::from_str::<Value>(trimmed) {
        Ok(_) => trimmed.to_owned(),
        Err(_) => Value::from(text).to_string(),
    }
}

/// The start of a JSON call.
pub(super) enum Head {
    /// It may become one that can be streamed.
    Partial,
    /// It has another form.
    Other,
    /// `{"name": NAME, "arguments":` up to `start`, where an object begins.
    Arguments { name: String, start: usize },
}

/// How `{"name": NAME, "arguments": {` begins in `text`.
pub(super) fn head(text: &str) -> Head {
    let mut at = 0;
    let mut strings = Vec::new();
    for part in ["{", "", ":", "", ",", "", ":"] {
        at = skip_space(text, at);
        let rest = &text[at..];
        if rest.is_empty() {
            return Head::Partial;
        }
        if !part.is_empty() {
            if !rest.starts_with(part) {
                return Head::Other;
            }
            at += part.len();
            continue;
        }
        if !rest.starts_with('"') {
            return Head::Other;
        }
        let Some(length) = string_length(rest) else { return Head::Partial };
        match serde_json::from_str::<String>(&rest[..length]) {
            Ok(string) => strings.push(string),
            Err(_) => return Head::Other,
        }
        at += length;
    }
    at = skip_space(text, at);
    let [key, name, arguments] = strings.as_slice() else { return Head::Other };
    if key != "name" || !matches!(arguments.as_str(), "arguments" | "parameters") {
        return Head::Other;
    }
    match text[at..].chars().next() {
        None => Head::Partial,
        Some('{') => Head::Arguments { name: name.clone(), start: at },
        Some(_) => Head::Other,
    }
}

fn skip_space(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start().len()
}

/// The length of the string literal at the start of `text`, if it is closed.
fn string_length(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Whether `text` ends inside a string literal.
pub(super) fn open_string(text: &str) -> bool {
    let mut scanner = ValueScanner::default();
    scanner.scan(text);
    scanner.in_string
}

/// Finds the end of an object that arrives in pieces.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ValueScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueScanner {
    /// How much of `text` belongs to the object, and whether that is its end.
    pub fn scan(&mut self, text: &str) -> (usize, bool) {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                _ => {}
            }
        }
        (text.len(), false)
    }
}

/// The calls of a complete JSON form: name and arguments as JSON text.
pub(super) fn calls(text: &str) -> Option<Vec<(String, String)>> {
    let list = match serde_json::from_str(text).ok()? {
        Value::Array(list) => list,
        one => vec![one],
    };
    list.iter().map(call).collect()
}

fn call(call: &Value) -> Option<(String, String)> {
    let call = call.get("function").filter(|function| function.is_object()).unwrap_or(call);
    let name = call.get("name")?.as_str()?.to_owned();
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        None | Some(Value::Null) => "{}".to_owned(),
        // Some models write the arguments as JSON text inside a string.
        Some(Value::String(text)) => {
            serde_json::from_str::<Value>(text).ok().filter(Value::is_object)?;
            text.clone()
        }
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return None,
    };
    Some((name, arguments))
}
