//! Which parameters of which tools are text.

use std::collections::BTreeMap;

use serde_json::Value;

/// How a parameter's value is written in the XML form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As it is: it becomes a JSON string.
    Text,
    /// As JSON.
    Json,
}

/// The kinds of all parameters, by function.
#[derive(Clone, Debug)]
pub(super) struct Schema {
    functions: BTreeMap<String, BTreeMap<String, Kind>>,
}

impl Schema {
    pub fn new(tools: Option<&Value>) -> Self {
        let tools = tools.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let functions = tools.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            let properties = function.pointer("/parameters/properties").and_then(Value::as_object);
            let kinds =
                properties.into_iter().flatten().map(|(key, schema)| (key.clone(), kind(schema)));
            Some((name, kinds.collect()))
        });
        Self { functions: functions.collect() }
    }

    /// Parameters that no schema names are text.
    pub fn kind(&self, function: &str, parameter: &str) -> Kind {
        let kind = self.functions.get(function).and_then(|parameters| parameters.get(parameter));
        kind.copied().unwrap_or(Kind::Text)
    }
}

fn kind(schema: &Value) -> Kind {
    let text = |kind: &Value| kind.as_str() == Some("string");
    let is_text = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(text),
        Some(kind) => text(kind),
        // An enumeration of strings is text without a type, too.
        None => schema
            .get("enum")
            .and_then(Value::as_array)
            .is_some_and(|values| values.iter().all(Value::is_string)),
    };
    if is_text { Kind::Text } else { Kind::Json }
}
