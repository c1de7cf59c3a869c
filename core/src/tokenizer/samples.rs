//! Two small tokenizers for the tests: byte-level BPE, and BPE with byte fallback.

use serde_json::{Map, Value, json};

use super::{Tokenizer, pieces};

pub(super) const BOS: u32 = 0;
pub(super) const EOS: u32 = 1;
pub(super) const THINK: u32 = 3;
/// Ids of the byte-level sample are below.
pub(super) const BYTE_LEVEL_SIZE: u32 = 5 + 256 + 6;
/// Ids of the fallback sample are below.
pub(super) const FALLBACK_SIZE: u32 = 3 + 256 + 9;

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

/// `<s>` 0, `</s>` 1, `<|im_end|>` 2, `<think>` 3 (not special), two spaces 4 (not special), the
/// bytes, then merges, of which two end within a character.
pub(super) fn byte_level() -> Value {
    let mut vocabulary = Map::new();
    for token in ["<s>", "</s>", "<|im_end|>", "<think>", "  "] {
        vocabulary.insert(token.to_owned(), vocabulary.len().into());
    }
    let alphabet = ('\0'..'\u{144}').filter(|c| pieces::byte_of(*c).is_some());
    for c in alphabet {
        vocabulary.insert(c.to_string(), vocabulary.len().into());
    }
    let merges = [["h", "e"], ["Ġ", "t"], ["Ġt", "he"], ["ð", "Ł"], ["ðŁ", "Ļ"], ["ðŁĻ", "Ĥ"]];
    for merge in merges {
        vocabulary.insert(merge.concat(), vocabulary.len().into());
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<s>", true), added(1, "</s>", true), added(2, "<|im_end|>", true),
            added(3, "<think>", false), added(4, "  ", false)],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges},
    })
}

/// `<s>` 0, `</s>` 1, `<unk>` 2, the bytes `<0x00>` to `<0xFF>`, then a few pieces; `<s>` is put
/// before every text by the post-processor.
pub(super) fn fallback() -> Value {
    let mut vocabulary = Map::new();
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = ["▁", "a", "b", "▁a", "▁▁", "é", "<", "s", ">"].map(str::to_owned);
    for token in ["<s>", "</s>", "<unk>"].map(str::to_owned).into_iter().chain(bytes).chain(pieces)
    {
        vocabulary.insert(token, vocabulary.len().into());
    }
    let template = json!([{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<s>", true), added(1, "</s>", true), added(2, "<unk>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing", "single": template, "pair": [
                {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary, "merges": [["▁", "a"], ["▁", "▁"]]},
    })
}

/// The fallback sample with the decoder that goes with a Metaspace pre-tokenizer.
pub(super) fn metaspace() -> Value {
    let mut sample = fallback();
    sample["decoder"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    sample
}

pub(super) fn load(file: &Value) -> Tokenizer {
    Tokenizer::new(file.to_string().as_bytes(), None).unwrap()
}

pub(super) fn load_with(file: &Value, config: &Value) -> Tokenizer {
    Tokenizer::new(file.to_string().as_bytes(), Some(config.to_string().as_bytes())).unwrap()
}

pub(super) fn refusal(file: &Value, config: Option<&Value>) -> String {
    let config = config.map(Value::to_string);
    let loaded = Tokenizer::new(file.to_string().as_bytes(), config.as_deref().map(str::as_bytes));
    loaded.unwrap_err().to_string()
}
