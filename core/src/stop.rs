//! Stop strings, matched in text that arrives in pieces.

use crate::error::{Error, Result};

/// The most stop strings that a request may give.
pub const MAX_STOPS: usize = 64;
/// The longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 4096;

/// Passes text through up to the first stop string.
///
/// Only the longest suffix that could still become a stop string is held back. The result does not
/// depend on how the text is split: the stop string that is complete first wins, and of several
/// complete at the same place the longest.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

/// What a piece of text released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Text that is certainly not part of a stop string.
    pub text: String,
    /// The stop string that ended the text. Nothing is passed after it.
    pub stop: Option<String>,
}

impl StopStrings {
    /// A matcher at the start of a text; no stop strings pass everything at once.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if stops.len() > MAX_STOPS {
            return Err(Error::request(format!(
                "stop: {} strings, at most {MAX_STOPS} are taken",
                stops.len()
            )));
        }
        for (index, stop) in stops.iter().enumerate() {
            if stop.is_empty() {
                return Err(Error::request(format!("stop[{index}] is empty; leave it out")));
            }
            if stop.len() > MAX_STOP_BYTES {
                return Err(Error::request(format!(
                    "stop[{index}] has {} bytes, at most {MAX_STOP_BYTES} are taken",
                    stop.len()
                )));
            }
        }
        Ok(Self { stops, held: String::new(), stopped: false })
    }

    /// Take the next piece of text.
    pub fn push(&mut self, delta: &str) -> Passed {
        if self.stopped {
            return Passed::default();
        }
        self.held.push_str(delta);
        if let Some((start, stop)) = self.first_match() {
            let text = self.held[..start].to_owned();
            let stop = Some(stop.to_owned());
            self.held.clear();
            self.stopped = true;
            return Passed { text, stop };
        }
        let keep = held_suffix(&self.held, &self.stops);
        let rest = self.held.split_off(self.held.len() - keep);
        Passed { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// The text has ended: what was held back is no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn first_match(&self) -> Option<(usize, &str)> {
        let matches = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop).map(|start| (start, stop.as_str())));
        matches.min_by_key(|(start, stop)| (start + stop.len(), *start))
    }
}

/// The length of the longest suffix of `text` that one of `patterns` starts with and is longer than.
pub(crate) fn held_suffix<P: AsRef<str>>(text: &str, patterns: &[P]) -> usize {
    let suffix = |pattern: &str| {
        let longest = text.len().min(pattern.len() - 1);
        (1..=longest).rev().find(|length| {
            let start = text.len() - length;
            pattern.as_bytes().starts_with(&text.as_bytes()[start..])
        })
    };
    patterns.iter().filter_map(|pattern| suffix(pattern.as_ref())).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(list: &[&str]) -> StopStrings {
        StopStrings::new(list.iter().map(|stop| (*stop).to_owned()).collect()).unwrap()
    }

    fn run(list: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut stops = stops(list);
        let mut text = String::new();
        for piece in pieces {
            let passed = stops.push(piece);
            text.push_str(&passed.text);
            if passed.stop.is_some() {
                return (text, passed.stop);
            }
        }
        text.push_str(&stops.finish());
        (text, None)
    }

    #[test]
    fn a_stop_string_split_over_tokens_is_found() {
        assert_eq!(
            run(&["</end>"], &["ab<", "/e", "nd", ">cd"]),
            ("ab".to_owned(), Some("</end>".to_owned()))
        );
    }

    #[test]
    fn only_what_could_become_a_stop_string_is_held_back() {
        let mut stops = stops(&["\n\nUser:"]);
        assert_eq!(stops.push("one\n").text, "one");
        assert_eq!(stops.push("two").text, "\ntwo");
        assert_eq!(stops.push("\n\nUse").text, "");
        assert_eq!(stops.push("d").text, "\n\nUsed");
        assert_eq!(stops.push("\n").text, "");
        assert_eq!(stops.finish(), "\n");
    }

    #[test]
    fn a_repeated_start_is_not_lost() {
        assert_eq!(
            run(&["aab"], &["a", "a", "a", "b", "x"]),
            ("a".to_owned(), Some("aab".to_owned()))
        );
    }

    #[test]
    fn the_stop_string_that_is_complete_first_wins() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".to_owned(), Some("bc".to_owned())));
        assert_eq!(run(&["c", "abc"], &["xabc"]), ("x".to_owned(), Some("abc".to_owned())));
    }

    #[test]
    fn nothing_passes_after_the_stop_string() {
        let mut stops = stops(&["."]);
        assert_eq!(stops.push("a.b").text, "a");
        assert_eq!(stops.push("c"), Passed::default());
        assert_eq!(stops.finish(), "");
    }

    #[test]
    fn characters_of_several_bytes_are_matched_whole() {
        assert_eq!(run(&["🙂"], &["é", "è🙂z"]), ("éè".to_owned(), Some("🙂".to_owned())));
        assert_eq!(run(&["é!"], &["caf", "é", "?"]), ("café?".to_owned(), None));
    }

    #[test]
    fn unusable_stop_strings_are_refused() {
        let error = |stops| StopStrings::new(stops).unwrap_err().to_string();
        assert_eq!(error(vec!["a".to_owned(), String::new()]), "stop[1] is empty; leave it out");
        assert_eq!(error(vec!["a".to_owned(); 65]), "stop: 65 strings, at most 64 are taken");
        assert_eq!(error(vec!["a".repeat(4097)]), "stop[0] has 4097 bytes, at most 4096 are taken");
    }

    proptest! {
        #[test]
        fn any_split_gives_the_unsplit_result(
            text in "[abé]{0,40}",
            list in prop::collection::vec("[abé]{1,4}", 0..4),
            cuts in prop::collection::vec(0usize..41, 0..8),
        ) {
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let whole = run(&list, &[&text]);
            prop_assert_eq!(&run(&list, &pieces), &whole);
            if whole.1.is_none() {
                prop_assert_eq!(whole.0, text);
            }
        }
    }
}
