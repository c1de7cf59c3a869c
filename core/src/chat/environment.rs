//! The Jinja environment that transformers gives to chat templates, with limits.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::{depth, json, prepare, strings};

pub(super) fn new(fuel: u64, recursion: usize) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(fuel));
    environment.set_recursion_limit(recursion);
    environment.set_unknown_method_callback(strings::method);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("fromjson", json::fromjson);
    environment.add_filter(prepare::DEPTH_FILTER, depth::limited_depth);
    environment.add_function("raise_exception", raise_exception);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    // These nest values deeper with each use in a chain; no known chat template uses them.
    for filter in ["batch", "slice", "groupby", "zip", "chunks"] {
        environment.remove_filter(filter);
    }
    Ok(environment)
}

/// Marks an error as the template's own.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<(), Error> {
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

/// The message that the template gave to `raise_exception`, where that is the cause of `error`.
pub(super) fn raised(error: &Error) -> Option<&str> {
    let mut cause = std::error::Error::source(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return Some(message);
        }
        cause = current.source();
    }
    None
}

/// In Python strings and dictionaries have a length and items, too.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined
    )
}

/// None is not iterable; an undefined value is, and empty.
fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}
