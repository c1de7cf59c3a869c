//! Messages as clients send them to messages as templates expect them.

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// `messages` with the contents of users and tools shielded, so that
/// [`Tokenizer::encode_chat`] reads special tokens that they spell as text.
///
/// The turns of the assistant and of the system are left alone: templates look for `<think>` in the
/// first, and the second come from whoever runs the model.
pub fn shielded(messages: &Value, tokenizer: &Tokenizer) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        if matches!(role, "assistant" | "system" | "developer") {
            continue;
        }
        match message.get_mut("content") {
            Some(Value::String(text)) => *text = tokenizer.shield(text),
            Some(Value::Array(parts)) => {
                for part in parts {
                    if let Some(Value::String(text)) = part.get_mut("text") {
                        *text = tokenizer.shield(text);
                    }
                }
            }
            _ => {}
        }
    }
    messages
}

/// Lists of text parts become one string, a null or missing content an empty one, and the arguments
/// of tool calls, which the API carries as JSON text, become objects.
pub(super) fn normalised(messages: &Value) -> Result<Value> {
    let Value::Array(messages) = messages else {
        return Err(Error::request("messages: not a list"));
    };
    let messages = messages.iter().enumerate().map(|(index, message)| {
        let Value::Object(message) = message else {
            return Err(Error::request(format!("messages[{index}]: not an object")));
        };
        one(message).map_err(|error| error.within(format!("messages[{index}]")))
    });
    messages.collect::<Result<Vec<Value>>>().map(Value::Array)
}

fn one(message: &Map<String, Value>) -> Result<Value> {
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(Error::request("role is missing or not a string"));
    }
    let mut message = message.clone();
    let content = match message.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts_text(parts)?,
        Some(_) => {
            return Err(Error::request("content is neither a string nor a list of text parts"));
        }
    };
    message.insert("content".to_owned(), Value::String(content));
    match message.get_mut("tool_calls") {
        None => {}
        Some(Value::Null) => {
            message.shift_remove("tool_calls");
        }
        Some(Value::Array(calls)) => {
            for (index, call) in calls.iter_mut().enumerate() {
                arguments(call).map_err(|error| error.within(format!("tool_calls[{index}]")))?;
            }
        }
        Some(_) => return Err(Error::request("tool_calls is not a list")),
    }
    Ok(Value::Object(message))
}

/// The parts' texts, one a line.
fn parts_text(parts: &[Value]) -> Result<String> {
    let texts = parts.iter().enumerate().map(|(index, part)| {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
        match part.get("text").and_then(Value::as_str) {
            Some(text) if matches!(kind, "text" | "input_text" | "output_text") => Ok(text),
            _ => Err(Error::request(format!(
                "content[{index}]: a part of type {kind:?}; this model reads text only"
            ))),
        }
    });
    texts.collect::<Result<Vec<&str>>>().map(|texts| texts.join("\n"))
}

fn arguments(call: &mut Value) -> Result<()> {
    let owner = if call.get("function").is_some() { call.get_mut("function") } else { Some(call) };
    let Some(Value::Object(function)) = owner else {
        return Err(Error::request("not an object with a function"));
    };
    let parsed = match function.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map_err(|error| Error::request(format!("arguments are not JSON: {error}")))?,
        Some(other) => other.clone(),
    };
    if !parsed.is_object() {
        return Err(Error::request("arguments are not a JSON object"));
    }
    function.insert("arguments".to_owned(), parsed);
    Ok(())
}
