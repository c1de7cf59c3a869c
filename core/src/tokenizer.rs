//! Text to token ids and back, from a checkpoint's `tokenizer.json` and `tokenizer_config.json`.
//!
//! Encoding is that of the `tokenizers` crate. Decoding is this module's own: the decoder of the
//! file is compiled once into steps per token, so that streaming costs the same for every token and
//! gives the same text as decoding all ids at once. Both files are untrusted: what this module does
//! not understand is refused at load.

mod config;
mod detokenizer;
mod file;
mod guard;
mod pieces;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use tokenizers::tokenizer::{
    Model, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer as Inner,
};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use config::TokenizerConfig;
pub use detokenizer::Detokenizer;
use guard::Guard;
use pieces::Pieces;

/// What to do with special tokens (`<s>`, `<|im_end|>`, ...) when ids become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Write them out.
    Keep,
    /// Leave them out.
    Skip,
}

/// A tokenizer; cloning shares the vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Inner,
    pieces: Pieces,
    guard: Guard,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    special_ids: HashSet<u32>,
    special_tokens: BTreeMap<String, String>,
    last: (u32, String),
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary_size", &self.vocabulary_size()).finish()
    }
}

impl Tokenizer {
    /// The tokenizer of a checkpoint, where it has one.
    ///
    /// # Errors
    /// As [`Tokenizer::new`]; also where it has tokens that the model does not know.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let Some(json) = checkpoint.file("tokenizer.json") else { return Ok(None) };
        let config = checkpoint.file("tokenizer_config.json");
        let tokenizer = Self::new(json, config.map(|c| &c[..]))?;
        tokenizer.check_vocabulary(checkpoint.spec().vocabulary)?;
        Ok(Some(tokenizer))
    }

    /// Read `tokenizer.json` and, where the checkpoint has one, `tokenizer_config.json`.
    ///
    /// Truncation and padding that `tokenizer.json` asks for are not applied: a prompt is never
    /// shortened silently.
    pub fn new(tokenizer_json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self> {
        let decoder = file::check(tokenizer_json)?;
        let pieces = Pieces::new(&decoder)?;
        let config = tokenizer_config
            .map_or_else(|| Ok(TokenizerConfig::default()), TokenizerConfig::new)?;
        let mut inner = Inner::from_bytes(tokenizer_json)
            .map_err(|error| Error::text(format!("tokenizer.json: {error}")))?;
        inner
            .with_truncation(None)
            .map_err(|error| Error::text(format!("tokenizer.json: {error}")))?;
        inner.with_padding(None);
        let (prefix, suffix) = affixes(&inner, &config)?;
        let added = inner.get_added_tokens_decoder();
        let special_ids =
            added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let guard = Guard::new(
            added.iter().map(|(id, token)| (*id, token.content.as_str(), token.special)),
        );
        let last = inner
            .get_vocab(true)
            .into_iter()
            .map(|(token, id)| (id, token))
            .max()
            .ok_or_else(|| Error::text("tokenizer.json: the vocabulary is empty"))?;
        let special_tokens = config.special_tokens;
        Ok(Self {
            shared: Arc::new(Shared {
                inner,
                pieces,
                guard,
                prefix,
                suffix,
                special_ids,
                special_tokens,
                last,
            }),
        })
    }

    /// The ids of a plain prompt (no chat template).
    ///
    /// Beginning and end tokens are added where `add_bos_token` and `add_eos_token` of
    /// `tokenizer_config.json` say so, or, where those are not stated, as the post-processor of
    /// `tokenizer.json` does. A beginning token that the text already starts with is not doubled.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let body = self.encode_chat(text)?;
        let Shared { prefix, suffix, .. } = &*self.shared;
        let mut ids = Vec::with_capacity(prefix.len() + body.len() + suffix.len());
        if !body.starts_with(prefix) {
            ids.extend(prefix);
        }
        ids.extend(body);
        if !ids.ends_with(suffix) {
            ids.extend(suffix);
        }
        Ok(ids)
    }

    /// The ids of text that a chat template rendered: special tokens in it are recognised, nothing
    /// is added at either end, and text that went through [`Tokenizer::shield`] stays text.
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for part in rendered.split(guard::CUT).filter(|part| !part.is_empty()) {
            let encoding = self.shared.inner.encode_fast(part, false).map_err(cannot_encode)?;
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(ids)
    }

    /// The ids of text in which no special token and no markup token (`<think>`, `<tool_call>`) is
    /// recognised, whatever the text spells.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let inner = &self.shared.inner;
        let mut pieces = PreTokenizedString::from(text);
        if let Some(normalizer) = inner.get_normalizer() {
            pieces.normalize(|piece| normalizer.normalize(piece)).map_err(cannot_encode)?;
        }
        if let Some(pre_tokenizer) = inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(cannot_encode)?;
        }
        pieces.tokenize(|piece| self.plain_tokens(piece.get())).map_err(cannot_encode)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(cannot_encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The model's tokens of one pre-tokenized piece. Models that take whole pieces from their
    /// vocabulary would find special tokens there: such a piece is cut.
    fn plain_tokens(&self, piece: &str) -> tokenizers::Result<Vec<tokenizers::Token>> {
        let Shared { inner, guard, .. } = &*self.shared;
        let tokens = inner.get_model().tokenize(piece)?;
        if !tokens.iter().any(|token| guard.holds(token.id)) {
            return Ok(tokens);
        }
        let mut tokens = Vec::new();
        for part in guard.shield(piece).split(guard::CUT) {
            tokens.extend(inner.get_model().tokenize(part)?);
        }
        Ok(tokens)
    }

    /// `text` with an invisible cut inside everything that spells a special or markup token, so that
    /// [`Tokenizer::encode_chat`] reads it as text. Apply it to message contents before rendering.
    ///
    /// The cut is U+FDD0, which Unicode reserves for internal use; those that the text brings along
    /// are removed. A tokenizer that puts a space before every text puts one at the cut, too.
    pub fn shield(&self, text: &str) -> String {
        self.shared.guard.shield(text)
    }

    /// The text of `ids`; ids that name no token are left out.
    pub fn decode(&self, ids: &[u32], special: Special) -> String {
        let mut detokenizer = self.detokenizer(special);
        let mut text = String::new();
        for id in ids {
            text.push_str(&detokenizer.push(*id));
        }
        text.push_str(&detokenizer.finish());
        text
    }

    /// A streaming decoder at the start of a text.
    pub fn detokenizer(&self, special: Special) -> Detokenizer {
        Detokenizer::new(self.clone(), special)
    }

    /// A token as the vocabulary spells it (`Ġhello`, `▁hello`, `<0xE2>`).
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.shared.inner.id_to_token(id)
    }

    /// The bytes that a token adds in the middle of a text; they need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.piece(id, false)
    }

    /// The id of a token as the vocabulary spells it.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.shared.inner.token_to_id(text)
    }

    /// Whether a token is flagged special.
    pub fn is_special(&self, id: u32) -> bool {
        self.shared.special_ids.contains(&id)
    }

    /// The named special tokens of `tokenizer_config.json` (`bos_token`, `eos_token`, ...): name to
    /// text. Chat templates see them as variables.
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.shared.special_tokens
    }

    /// One past the highest token id.
    pub fn vocabulary_size(&self) -> usize {
        usize::try_from(self.shared.last.0).map_or(usize::MAX, |last| last.saturating_add(1))
    }

    /// Refuse a model whose embedding has fewer rows than the tokenizer has ids. More rows are fine:
    /// embeddings are padded to round numbers.
    pub fn check_vocabulary(&self, model_rows: usize) -> Result<()> {
        if self.vocabulary_size() <= model_rows {
            return Ok(());
        }
        let (id, token) = &self.shared.last;
        Err(Error::text(format!(
            "tokenizer.json: token {id} ({token:?}) is past the model's embedding of {model_rows} rows; \
             take tokenizer.json and weights from the same checkpoint"
        )))
    }

    fn piece(&self, id: u32, first: bool) -> Option<Vec<u8>> {
        self.token_text(id).map(|token| self.shared.pieces.piece(&token, first))
    }
}

fn cannot_encode(error: impl fmt::Display) -> Error {
    Error::text(format!("tokenizer: text cannot be encoded: {error}"))
}

/// The ids before and after every plain prompt.
fn affixes(inner: &Inner, config: &TokenizerConfig) -> Result<(Vec<u32>, Vec<u32>)> {
    let encode = |special| inner.encode_fast("a", special).map_err(cannot_encode);
    let (bare, full) = (encode(false)?, encode(true)?);
    let (bare, full) = (bare.get_ids(), full.get_ids());
    let start = (0..=full.len().saturating_sub(bare.len()))
        .find(|start| full[*start..].starts_with(bare))
        .ok_or_else(|| {
            Error::text("tokenizer.json: the post_processor changes the ids of the text itself")
        })?;
    let mut prefix = full[..start].to_vec();
    let mut suffix = full[start + bare.len()..].to_vec();
    let id = |name: &str| {
        let token = config.special_tokens.get(name)?;
        inner.token_to_id(token)
    };
    if let Some(add) = config.add_bos_token {
        prefix = affix("bos_token", id("bos_token"), prefix, add)?;
    }
    if let Some(add) = config.add_eos_token {
        suffix = affix("eos_token", id("eos_token"), suffix, add)?;
    }
    Ok((prefix, suffix))
}

fn affix(name: &str, id: Option<u32>, found: Vec<u32>, add: bool) -> Result<Vec<u32>> {
    match (id, add) {
        (Some(id), true) => Ok(vec![id]),
        (None, true) => Err(Error::text(format!(
            "tokenizer_config.json: add_{name} is true, but {name} is missing or not in the vocabulary"
        ))),
        (id, false) => Ok(found.into_iter().filter(|found| Some(*found) != id).collect()),
    }
}
