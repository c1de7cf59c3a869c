//! Keeps text that spells a special token from becoming that token.

use std::collections::{BTreeSet, HashSet};

/// Marks a place at which the text is encoded in two parts: a Unicode noncharacter.
pub(super) const CUT: char = '\u{FDD0}';

/// The tokens that untrusted text may spell but not mean.
pub(super) struct Guard {
    ids: HashSet<u32>,
    tokens: HashSet<String>,
    first: HashSet<char>,
    /// Distinct lengths in bytes, longest first.
    lengths: Vec<usize>,
}

impl Guard {
    /// From the added tokens: id, content, and whether it is flagged special.
    pub fn new<'a>(added: impl Iterator<Item = (u32, &'a str, bool)>) -> Self {
        let guarded =
            |token: &str, special| (special || is_markup(token)) && token.chars().nth(1).is_some();
        let (ids, tokens): (HashSet<u32>, HashSet<String>) = added
            .filter(|(_, token, special)| guarded(token, *special))
            .map(|(id, token, _)| (id, token.to_owned()))
            .unzip();
        let first = tokens.iter().filter_map(|token| token.chars().next()).collect();
        let lengths: BTreeSet<usize> = tokens.iter().map(String::len).collect();
        Self { ids, tokens, first, lengths: lengths.into_iter().rev().collect() }
    }

    /// Whether this is the id of a guarded token.
    pub fn holds(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }

    /// Cut after the first character of each guarded token, so that no part spells one.
    pub fn shield(&self, text: &str) -> String {
        let clean = text.replace(CUT, "");
        let mut shielded = String::with_capacity(clean.len());
        for (at, c) in clean.char_indices() {
            shielded.push(c);
            if self.first.contains(&c) && self.starts_here(&clean[at..]) {
                shielded.push(CUT);
            }
        }
        shielded
    }

    fn starts_here(&self, text: &str) -> bool {
        self.lengths
            .iter()
            .any(|length| text.get(..*length).is_some_and(|part| self.tokens.contains(part)))
    }
}

/// `<think>` and `[INST]` are markup even where the file does not flag them special; runs of spaces
/// and words that some vocabularies add are text.
fn is_markup(token: &str) -> bool {
    let punctuation = |c: Option<char>| c.is_some_and(|c| c.is_ascii_punctuation());
    punctuation(token.chars().next())
        && punctuation(token.chars().next_back())
        && token.chars().any(char::is_alphanumeric)
}
