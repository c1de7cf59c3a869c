//! `tojson` as Python's `json.dumps`, and `fromjson`.

use std::fmt::Write;

use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

const MAX_DEPTH: usize = 128;

/// `value | tojson(indent=..., ensure_ascii=..., sort_keys=..., separators=...)`: keys in their
/// order, `", "` and `": "` between, and no escapes but those that JSON needs.
pub(super) fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        None => None,
        Some(pair) if pair.is_none() => None,
        Some(pair) => {
            Some((text(&pair.get_item_by_index(0)?)?, text(&pair.get_item_by_index(1)?)?))
        }
    };
    let indent = indent_text(indent)?;
    let (item, key) = separators.unwrap_or_else(|| {
        let item = if indent.is_some() { "," } else { ", " };
        (item.to_owned(), ": ".to_owned())
    });
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Writer { state, out: String::new(), indent, item, key, ascii, sort, depth: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

/// `text | fromjson`: the value that JSON text stands for.
pub(super) fn fromjson(json: &str) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::from_str(json)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("fromjson: {error}")))?;
    Ok(Serde(&value).into())
}

fn text(value: &Value) -> Result<String, Error> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "tojson: separators are not two strings")
    })
}

fn indent_text(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent.filter(|indent| !indent.is_none()) else { return Ok(None) };
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    match indent.as_i64() {
        Some(spaces @ 0..=16) => Ok(Some(" ".repeat(usize::try_from(spaces).unwrap_or(0)))),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson: indent is neither a string nor 0 to 16",
        )),
    }
}

struct Writer<'a, 'vm, 'env> {
    state: &'a State<'vm, 'env>,
    out: String,
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort: bool,
    depth: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        let steps = 1 + value.as_str().map_or(0, str::len) / 64;
        self.state.consume_fuel(u64::try_from(steps).unwrap_or(u64::MAX))?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value)?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
                self.container('[', ']', items, |writer, item| writer.value(item))?;
            }
            other => {
                let message = format!("tojson: a value of kind {other} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn map(&mut self, map: &Value) -> Result<(), Error> {
        let mut pairs = Vec::new();
        for key in map.try_iter()?.checked() {
            let key = key?;
            let value = map.get_item(&key)?;
            pairs.push((key_text(&key)?, value));
        }
        if self.sort {
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        self.container('{', '}', pairs, |writer, (key, value)| {
            writer.string(key);
            let separator = writer.key.clone();
            writer.out.push_str(&separator);
            writer.value(value)
        })
    }

    fn container<T>(
        &mut self,
        open: char,
        close: char,
        items: Vec<T>,
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.depth == MAX_DEPTH {
            let message = format!("tojson: the value is nested deeper than {MAX_DEPTH}");
            return Err(Error::new(ErrorKind::BadSerialization, message));
        }
        self.out.push(open);
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            self.new_line();
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line();
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number(key)),
        other => {
            Err(Error::new(ErrorKind::BadSerialization, format!("tojson: a key of kind {other}")))
        }
    }
}

/// Integers as they are, floats as Python's `repr`.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) => float_repr(float),
        Err(_) => value.to_string(),
    }
}

/// The shortest digits that read back as the same float; an exponent below 1e-4 and from 1e16 on.
fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{float}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

#[cfg(test)]
mod tests {
    use super::float_repr;

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (f64::INFINITY, "Infinity"),
            (f64::NAN, "NaN"),
        ];
        for (float, want) in cases {
            assert_eq!(float_repr(float), want);
        }
    }
}
