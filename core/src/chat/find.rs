//! Where a checkpoint keeps its chat template.

use serde_json::Value;

use crate::error::{Error, Result};

/// One template that comes with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateSource {
    /// `default`, or the name that the list in `tokenizer_config.json` gives, such as `tool_use`.
    pub name: String,
    /// The Jinja source.
    pub source: String,
}

/// The templates of a checkpoint, `default` first where there is one.
///
/// `chat_template.jinja` wins over `chat_template` of `tokenizer_config.json`, which is a string or
/// a list of `{name, template}`. The list is empty where the checkpoint has no template.
pub fn find_templates(
    jinja: Option<&str>,
    tokenizer_config: Option<&[u8]>,
) -> Result<Vec<TemplateSource>> {
    if let Some(source) = jinja {
        return Ok(vec![TemplateSource { name: "default".to_owned(), source: source.to_owned() }]);
    }
    let Some(json) = tokenizer_config else { return Ok(Vec::new()) };
    let config: Value = serde_json::from_slice(json)
        .map_err(|error| Error::text(format!("tokenizer_config.json: {error}")))?;
    let mut templates = match config.get("chat_template") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(source)) => {
            vec![TemplateSource { name: "default".to_owned(), source: source.clone() }]
        }
        Some(Value::Array(list)) => list.iter().map(named).collect::<Result<_>>()?,
        Some(_) => return Err(malformed()),
    };
    templates.sort_by_key(|template| template.name != "default");
    Ok(templates)
}

/// The template for a request: `tool_use` where tools are given and the checkpoint has one, else
/// `default`, else the only one.
pub fn choose_template(templates: &[TemplateSource], with_tools: bool) -> Option<&TemplateSource> {
    let named = |name: &str| templates.iter().find(|template| template.name == name);
    let tool_use = if with_tools { named("tool_use") } else { None };
    let only = || if let [only] = templates { Some(only) } else { None };
    tool_use.or_else(|| named("default")).or_else(only)
}

fn named(entry: &Value) -> Result<TemplateSource> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    match (text("name"), text("template")) {
        (Some(name), Some(source)) => Ok(TemplateSource { name, source }),
        _ => Err(malformed()),
    }
}

fn malformed() -> Error {
    Error::text(
        "tokenizer_config.json: chat_template is neither a string nor a list of {name, template}",
    )
}
