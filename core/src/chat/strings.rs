//! Python's methods on strings and dictionaries.
//!
//! `minijinja_contrib::pycompat` has most of them; here are those that it lacks or does otherwise.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Called by the engine for a method that a value does not have itself.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if value.kind() == ValueKind::String
        && let Some(text) = value.as_str()
        && let Some(result) = string_method(text, name, args)
    {
        return result;
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match name {
        "strip" => strip(text, args, true, true),
        "lstrip" => strip(text, args, true, false),
        "rstrip" => strip(text, args, false, true),
        "split" => split(text, args, false),
        "rsplit" => split(text, args, true),
        "title" => from_args::<()>(args).map(|()| title(text).into()),
        "swapcase" => from_args::<()>(args).map(|()| swap_case(text).into()),
        "casefold" => from_args::<()>(args).map(|()| text.to_lowercase().into()),
        "removeprefix" => from_args(args)
            .map(|(prefix,): (&str,)| text.strip_prefix(prefix).unwrap_or(text).into()),
        "removesuffix" => from_args(args)
            .map(|(suffix,): (&str,)| text.strip_suffix(suffix).unwrap_or(text).into()),
        "partition" => {
            from_args(args).and_then(|(separator,): (&str,)| partition(text, separator, false))
        }
        "rpartition" => {
            from_args(args).and_then(|(separator,): (&str,)| partition(text, separator, true))
        }
        "index" => from_args(args).and_then(|(part,): (&str,)| index(text, text.find(part))),
        "rindex" => from_args(args).and_then(|(part,): (&str,)| index(text, text.rfind(part))),
        "isdecimal" => from_args::<()>(args)
            .map(|()| (!text.is_empty() && text.chars().all(char::is_numeric)).into()),
        _ => return None,
    })
}

/// What Python strips: Unicode white space and the four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let (chars,): (Option<Value>,) = from_args(args)?;
    let chars = chars.filter(|chars| !chars.is_none());
    let set: Option<Vec<char>> = match &chars {
        None => None,
        Some(chars) => Some(string(chars)?.chars().collect()),
    };
    let strips = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(&c));
    let text = if start { text.trim_start_matches(strips) } else { text };
    Ok(if end { text.trim_end_matches(strips) } else { text }.into())
}

/// `split(sep=None, maxsplit=-1)` and `rsplit`.
fn split(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let (separator, most, options): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(options.get("sep")?).filter(|separator| !separator.is_none());
    let most = most.or(options.get("maxsplit")?).unwrap_or(-1);
    options.assert_all_used()?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let parts: Vec<&str> = match &separator {
        None => split_spaces(text, most, from_end),
        Some(separator) => {
            let separator = string(separator)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "split: empty separator"));
            }
            let pieces = most.saturating_add(1);
            if from_end {
                let mut parts: Vec<&str> = text.rsplitn(pieces, separator).collect();
                parts.reverse();
                parts
            } else {
                text.splitn(pieces, separator).collect()
            }
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Runs of white space separate; the part that is left over after `most` splits keeps its inside.
fn split_spaces(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let trim = |text| {
        if from_end {
            str::trim_end_matches(text, is_space)
        } else {
            str::trim_start_matches(text, is_space)
        }
    };
    let mut rest: &str = trim(text);
    while !rest.is_empty() {
        let at = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let (part, after) = match at {
            Some(at) if parts.len() < most => {
                let (left, right) = rest.split_at(at);
                if from_end { (right.trim_start_matches(is_space), left) } else { (left, right) }
            }
            _ => (rest, ""),
        };
        parts.push(part);
        rest = trim(after);
    }
    if from_end {
        parts.reverse();
    }
    parts
}

/// Python's rule: a letter after anything but a letter is upper case (`they're` -> `They'Re`).
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            titled.extend(c.to_lowercase());
        } else {
            titled.extend(c.to_uppercase());
        }
        inside = c.is_uppercase() || c.is_lowercase();
    }
    titled
}

fn swap_case(text: &str) -> String {
    let mut swapped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            swapped.extend(c.to_lowercase());
        } else {
            swapped.extend(c.to_uppercase());
        }
    }
    swapped
}

fn partition(text: &str, separator: &str, from_end: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "partition: empty separator"));
    }
    let parts = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match parts {
        Some((left, right)) => [left, separator, right],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn index(text: &str, at: Option<usize>) -> Result<Value, Error> {
    let at =
        at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "index: substring not found"))?;
    Ok(text[..at].chars().count().into())
}

fn string(value: &Value) -> Result<&str, Error> {
    let message = || format!("expected a string, found {}", value.kind());
    value.as_str().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, message()))
}
