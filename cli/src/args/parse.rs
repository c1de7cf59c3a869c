//! Values of options: their ranges, and errors that name what is wrong.

use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::ops::RangeBounds;
use std::str::FromStr;

/// `ID=V`: what is added to one token's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitBias {
    /// The token.
    pub token: u32,
    /// From -100 to 100.
    pub bias: f32,
}

impl FromStr for LogitBias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (token, bias) = text.split_once('=').ok_or("want ID=V, such as 42=-1.5")?;
        let token = token.trim().parse().map_err(|_| format!("`{token}` is no token id"))?;
        let bias = number(bias, (Included(-100.0), Included(100.0)), "from -100 to 100")?;
        Ok(Self { token, bias })
    }
}

/// `KEY=VALUE` for a chat template; the value is JSON where it can be read as JSON, else text.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateArg {
    /// Name in the template.
    pub key: String,
    /// Its value.
    pub value: serde_json::Value,
}

impl FromStr for TemplateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("want KEY=VALUE")?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if key.is_empty()
            || key.starts_with(|c: char| c.is_ascii_digit())
            || !key.chars().all(plain)
        {
            return Err(format!("`{key}` is no name: want letters, digits and `_`"));
        }
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        Ok(Self { key: key.to_owned(), value })
    }
}

/// A text that is not empty.
pub(super) fn non_empty(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("want some text".into()) } else { Ok(text.to_owned()) }
}

/// 0 to 100.
pub(super) fn temperature(text: &str) -> Result<f32, String> {
    number(text, (Included(0.0), Included(100.0)), "from 0 to 100")
}

/// Above 0, up to 1.
pub(super) fn top_p(text: &str) -> Result<f32, String> {
    number(text, (Excluded(0.0), Included(1.0)), "above 0, up to 1")
}

/// From 0, below 1.
pub(super) fn min_p(text: &str) -> Result<f32, String> {
    number(text, (Included(0.0), Excluded(1.0)), "from 0, below 1")
}

/// Above 0.
pub(super) fn repetition_penalty(text: &str) -> Result<f32, String> {
    number(text, (Excluded(0.0), Unbounded), "above 0")
}

/// -2 to 2.
pub(super) fn penalty(text: &str) -> Result<f32, String> {
    number(text, (Included(-2.0), Included(2.0)), "from -2 to 2")
}

/// One item of a list of token ids or row numbers.
pub(super) fn item(text: &str) -> Result<u32, String> {
    match text.trim() {
        "" => Err("an item of the list is empty".into()),
        text => text.parse().map_err(|_| format!("`{text}` is no number from 0 to {}", u32::MAX)),
    }
}

/// One item of a list of counts, which must not be 0.
pub(super) fn count(text: &str) -> Result<usize, String> {
    match item(text)? {
        0 => Err("`0` is no length: want 1 or more".into()),
        count => usize::try_from(count).map_err(|error| error.to_string()),
    }
}

fn number(text: &str, range: (Bound<f32>, Bound<f32>), want: &str) -> Result<f32, String> {
    let number: f32 = text.trim().parse().map_err(|_| format!("`{text}` is no number"))?;
    let valid = number.is_finite() && range.contains(&number);
    if valid { Ok(number) } else { Err(format!("{text} is out of range: want a number {want}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_ranges() {
        type Case<'a> = (fn(&str) -> Result<f32, String>, &'a [&'a str], &'a [&'a str]);
        let cases: [Case<'_>; 5] = [
            (temperature, &["0", "0.7", "100"], &["-0.1", "101", "NaN", "inf", "warm", ""]),
            (top_p, &["0.01", "1"], &["0", "1.01", "-1"]),
            (min_p, &["0", "0.99"], &["1", "-0.1"]),
            (repetition_penalty, &["0.5", "1.3"], &["0", "-1", "inf"]),
            (penalty, &["-2", "2"], &["2.1", "-2.1"]),
        ];
        for (parse, good, bad) in cases {
            assert!(good.iter().all(|text| parse(text).is_ok()), "{good:?}");
            assert!(bad.iter().all(|text| parse(text).is_err()), "{bad:?}");
        }
        assert_eq!(top_p("0").unwrap_err(), "0 is out of range: want a number above 0, up to 1");
    }

    #[test]
    fn a_logit_bias_names_its_bad_half() {
        assert_eq!("42=-1.5".parse(), Ok(LogitBias { token: 42, bias: -1.5 }));
        let error = |text: &str| text.parse::<LogitBias>().unwrap_err();
        assert_eq!(error("42"), "want ID=V, such as 42=-1.5");
        assert_eq!(error("-1=2"), "`-1` is no token id");
        assert_eq!(error("1=x"), "`x` is no number");
        assert_eq!(error("1=101"), "101 is out of range: want a number from -100 to 100");
    }

    #[test]
    fn a_template_argument_is_json_or_text() {
        let value = |text: &str| text.parse::<TemplateArg>().unwrap().value;
        assert_eq!(value("a=true"), serde_json::json!(true));
        assert_eq!(value("a=[1, 2]"), serde_json::json!([1, 2]));
        assert_eq!(value("a=low"), serde_json::json!("low"));
        assert_eq!(value("a="), serde_json::json!(""));
        assert_eq!(value("a=b=c"), serde_json::json!("b=c"));
        for text in ["a", "=1", "a b=1", "1a=1", "a.b=1"] {
            assert!(text.parse::<TemplateArg>().is_err(), "{text}");
        }
    }
}
