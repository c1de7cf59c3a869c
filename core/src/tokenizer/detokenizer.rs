//! Ids to text, one at a time.

use super::{Special, Tokenizer};

/// Turns ids into pieces of text that end at character boundaries.
///
/// The pieces put together are what [`Tokenizer::decode`] gives for all ids. Bytes that are not
/// UTF-8 become U+FFFD as soon as it is certain that no later id completes them.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    special: Special,
    first: bool,
    strip_left: usize,
    /// The start of a character whose other bytes have not come yet: at most 3 bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Tokenizer, special: Special) -> Self {
        let strip_left = tokenizer.shared.pieces.strip_start.map_or(0, |(_, count)| count);
        Self { tokenizer, special, first: true, strip_left, pending: Vec::new() }
    }

    /// The text that `id` completes; empty where it only starts a character, is hidden, or is not
    /// in the vocabulary.
    pub fn push(&mut self, id: u32) -> String {
        if self.special == Special::Skip && self.tokenizer.is_special(id) {
            return String::new();
        }
        let Some(piece) = self.tokenizer.piece(id, self.first) else { return String::new() };
        self.first = false;
        self.pending.extend(piece);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                }
                Err(error) => {
                    let (valid, tail) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = tail;
                    if let Some(bad) = error.error_len() {
                        text.push_str(&self.replacement(bad));
                        rest = &tail[bad..];
                        continue;
                    }
                }
            }
            break;
        }
        self.pending = rest.to_vec();
        self.strip(text)
    }

    /// The text of what is left: U+FFFD for a character that never became whole.
    pub fn finish(&mut self) -> String {
        let left = std::mem::take(&mut self.pending);
        if left.is_empty() { String::new() } else { self.replacement(left.len()) }
    }

    fn replacement(&self, bytes: usize) -> String {
        let count = if self.tokenizer.shared.pieces.single_bytes { bytes } else { 1 };
        "\u{FFFD}".repeat(count)
    }

    fn strip(&mut self, text: String) -> String {
        let Some((content, _)) = self.tokenizer.shared.pieces.strip_start else { return text };
        let mut rest = text.as_str();
        while self.strip_left > 0 && !rest.is_empty() {
            match rest.strip_prefix(content) {
                Some(shorter) => {
                    rest = shorter;
                    self.strip_left -= 1;
                }
                None => self.strip_left = 0,
            }
        }
        rest.to_owned()
    }
}
