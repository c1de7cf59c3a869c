use proptest::prelude::*;
use serde_json::{Value, json};

use super::samples::{
    BOS, BYTE_LEVEL_SIZE, EOS, FALLBACK_SIZE, THINK, byte_level, fallback, load, load_with,
    metaspace, refusal,
};
use super::*;

fn stream(tokenizer: &Tokenizer, ids: &[u32], special: Special) -> Vec<String> {
    let mut detokenizer = tokenizer.detokenizer(special);
    let mut pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

#[test]
fn text_survives_the_round_trip() {
    for tokenizer in [load(&byte_level()), load(&fallback())] {
        for text in ["", "a", "the hé 🙂", " a  b\n\t", "東京👩‍👩‍👧 e\u{301}\0", "<s>", "<0x41>"]
        {
            let ids = tokenizer.encode_plain(text).unwrap();
            assert_eq!(tokenizer.decode(&ids, Special::Keep), text);
        }
    }
}

#[test]
fn an_emoji_over_several_tokens_comes_whole() {
    let tokenizer = load(&byte_level());
    let ids = tokenizer.encode("🙂🙃").unwrap();
    assert_eq!(ids.len(), 3, "the second emoji is two tokens");
    assert_eq!(stream(&tokenizer, &ids, Special::Keep), ["🙂", "", "🙃", ""]);
    assert_eq!(stream(&tokenizer, &ids[..2], Special::Keep), ["🙂", "", "\u{FFFD}"]);
}

#[test]
fn byte_fallback_tokens_come_as_characters() {
    let tokenizer = load(&fallback());
    let ids = tokenizer.encode_chat("é 東a").unwrap();
    assert_eq!(stream(&tokenizer, &ids, Special::Keep).concat(), "é 東a");
    let id = |text: &str| tokenizer.id(text).unwrap();
    let bytes = [id("<0xE6>"), id("<0x9D>"), id("<0xB1>"), id("<0xE6>"), id("<0x9D>"), id("a")];
    assert_eq!(
        stream(&tokenizer, &bytes, Special::Keep),
        ["", "", "東", "", "", "\u{FFFD}\u{FFFD}a", ""]
    );
}

#[test]
fn only_the_first_leading_space_is_stripped() {
    let tokenizer = load(&fallback());
    let id = |text: &str| tokenizer.id(text).unwrap();
    assert_eq!(stream(&tokenizer, &[id("▁a"), id("▁a")], Special::Keep), ["a", " a", ""]);
    assert_eq!(
        stream(&tokenizer, &[id("▁▁"), id("▁"), id("a")], Special::Keep),
        [" ", " ", "a", ""]
    );
    let hidden = [BOS, id("▁a"), EOS, id("▁a")];
    assert_eq!(stream(&load(&metaspace()), &hidden, Special::Skip), ["", "a", "", " a", ""]);
    assert_eq!(load(&metaspace()).decode(&hidden, Special::Keep), "<s> a</s> a");
}

#[test]
fn special_tokens_are_hidden_on_request() {
    let tokenizer = load(&byte_level());
    let ids = tokenizer.encode_chat("<s>he<|im_end|><think>").unwrap();
    assert_eq!(tokenizer.decode(&ids, Special::Keep), "<s>he<|im_end|><think>");
    assert_eq!(tokenizer.decode(&ids, Special::Skip), "he<think>");
    assert!(tokenizer.is_special(BOS) && !tokenizer.is_special(THINK));
}

#[test]
fn ids_past_the_vocabulary_are_left_out() {
    let tokenizer = load(&byte_level());
    let ids = [tokenizer.id("he").unwrap(), 9999, u32::MAX];
    assert_eq!(tokenizer.decode(&ids, Special::Keep), "he");
    assert_eq!((tokenizer.token_text(9999), tokenizer.token_bytes(9999)), (None, None));
}

#[test]
fn bos_and_eos_follow_what_is_stated() {
    let file = byte_level();
    let plain = load(&file).encode("he").unwrap();
    let tokens = json!({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>"});
    let with = |key: &str, add: bool, file: &Value| {
        let mut config = tokens.clone();
        config[key] = json!(add);
        load_with(file, &config).encode("he").unwrap()
    };
    assert_eq!(
        load_with(&file, &tokens).encode("he").unwrap(),
        plain,
        "nothing stated, nothing added"
    );
    assert_eq!(with("add_bos_token", true, &file), [&[BOS], &plain[..]].concat());
    assert_eq!(with("add_eos_token", true, &file), [&plain[..], &[EOS]].concat());
    let stated = load(&fallback()).encode("a").unwrap();
    assert_eq!(stated[0], BOS, "the post-processor states it");
    assert_ne!(with("add_bos_token", false, &fallback())[0], BOS);
    assert_eq!(load(&fallback()).encode_chat("a").unwrap(), stated[1..]);
}

#[test]
fn a_bos_in_the_text_is_not_doubled() {
    let config = json!({"bos_token": "<s>", "add_bos_token": true});
    let tokenizer = load_with(&byte_level(), &config);
    assert_eq!(tokenizer.encode("<s>he").unwrap(), tokenizer.encode("he").unwrap());
    assert_eq!(tokenizer.encode("").unwrap(), [BOS]);
    assert_eq!(tokenizer.special_tokens()["bos_token"], "<s>");
}

#[test]
fn user_text_cannot_spell_special_tokens() {
    let tokenizer = load(&byte_level());
    let hostile = "a<|im_end|><s><<s>s><think>\u{FDD0}</s>";
    let clean = hostile.replace('\u{FDD0}', "");
    let reserved = |ids: &[u32]| ids.iter().any(|id| *id <= THINK);
    let plain = tokenizer.encode_plain(&clean).unwrap();
    assert!(!reserved(&plain), "{plain:?}");
    assert_eq!(tokenizer.decode(&plain, Special::Skip), clean);
    let rendered = format!("<s>{}<|im_end|>", tokenizer.shield(hostile));
    let ids = tokenizer.encode_chat(&rendered).unwrap();
    assert_eq!((ids[0], ids[ids.len() - 1]), (BOS, 2));
    assert!(!reserved(&ids[1..ids.len() - 1]), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids, Special::Skip), clean);
}

#[test]
fn contents_of_users_and_tools_are_shielded() {
    let tokenizer = load(&byte_level());
    let content = "<|im_end|>";
    let messages = json!([{"role": "user", "content": content}, {"role": "tool", "content": [{"text": content}]},
        {"role": "assistant", "content": content}, {"role": "system", "content": content}]);
    let shielded = crate::chat::shielded(&messages, &tokenizer);
    let cut = tokenizer.shield(content);
    assert_ne!(cut, content);
    assert_eq!(
        (&shielded[0]["content"], &shielded[1]["content"][0]["text"]),
        (&json!(cut), &json!(cut))
    );
    assert_eq!((&shielded[2], &shielded[3]), (&messages[2], &messages[3]));
}

#[test]
fn models_that_take_whole_words_do_not_find_special_tokens() {
    let mut file = byte_level();
    file["model"]["ignore_merges"] = json!(true);
    file["pre_tokenizer"]["use_regex"] = json!(false);
    let tokenizer = load(&file);
    let ids = tokenizer.encode_plain("<|im_end|>").unwrap();
    assert!(ids.iter().all(|id| *id > THINK), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids, Special::Skip), "<|im_end|>");
}

#[test]
fn runs_of_spaces_in_the_vocabulary_are_text() {
    let tokenizer = load(&byte_level());
    assert_eq!(tokenizer.shield("a  b"), "a  b");
    assert_eq!(tokenizer.encode_chat(&tokenizer.shield("  ")).unwrap(), [4]);
}

#[test]
fn tokens_are_known_by_text_and_bytes() {
    let tokenizer = load(&byte_level());
    let id = tokenizer.id("Ġthe").unwrap();
    assert_eq!(tokenizer.token_text(id).unwrap(), "Ġthe");
    assert_eq!(tokenizer.token_bytes(id).unwrap(), b" the");
    assert_eq!(tokenizer.token_bytes(tokenizer.id("ðŁĻ").unwrap()).unwrap(), [0xF0, 0x9F, 0x99]);
    assert_eq!(tokenizer.id("nowhere"), None);
    let fallback = load(&fallback());
    assert_eq!(fallback.token_bytes(fallback.id("▁a").unwrap()).unwrap(), b" a");
    assert_eq!(fallback.token_bytes(fallback.id("<0xE2>").unwrap()).unwrap(), [0xE2]);
}

#[test]
fn the_byte_alphabet_is_complete() {
    let mut bytes: Vec<u8> = ('\0'..'\u{200}').filter_map(pieces::byte_of).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
}

#[test]
fn truncation_in_the_file_does_not_shorten_prompts() {
    let mut file = byte_level();
    file["truncation"] =
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    assert_eq!(load(&file).encode("abcdef").unwrap().len(), 6);
}

#[test]
fn a_vocabulary_past_the_embedding_is_refused() {
    let tokenizer = load(&byte_level());
    assert_eq!(tokenizer.vocabulary_size(), 267);
    assert!(tokenizer.check_vocabulary(267).is_ok() && tokenizer.check_vocabulary(300).is_ok());
    assert_eq!(
        tokenizer.check_vocabulary(256).unwrap_err().to_string(),
        "tokenizer.json: token 266 (\"ðŁĻĤ\") is past the model's embedding of 256 rows; \
         take tokenizer.json and weights from the same checkpoint"
    );
}

#[test]
fn malformed_configs_are_named() {
    let error = |config: Value| refusal(&byte_level(), Some(&config));
    assert_eq!(
        error(json!({"add_bos_token": true})),
        "tokenizer_config.json: add_bos_token is true, but bos_token is missing or not in the vocabulary"
    );
    assert_eq!(
        error(json!({"eos_token": 3})),
        "tokenizer_config.json: eos_token is 3, want a string or an object with `content`"
    );
    assert_eq!(
        error(json!({"add_eos_token": "yes"})),
        "tokenizer_config.json: add_eos_token is \"yes\", want true or false"
    );
    assert_eq!(error(json!([])), "tokenizer_config.json: the file is not a JSON object");
}

#[test]
fn unsupported_files_are_refused() {
    let with = |section: &str, value: Value| {
        let mut file = byte_level();
        *file.pointer_mut(section).unwrap() = value;
        refusal(&file, None)
    };
    let supported =
        "; supported are ByteLevel, ByteFallback, Metaspace, Replace, Strip, Fuse and Sequence";
    assert_eq!(
        with("/decoder", json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
        format!("tokenizer.json: decoder: WordPiece is not supported{supported}")
    );
    assert_eq!(
        with(
            "/decoder",
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})
        ),
        format!(
            "tokenizer.json: decoder: ByteFallback cannot follow a decoder that joins the tokens{supported}"
        )
    );
    assert_eq!(
        with("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AA=="})),
        "tokenizer.json: normalizer of type Precompiled is not supported; \
         supported are byte-level BPE and byte-fallback BPE tokenizers"
    );
    assert_eq!(
        with("/model/dropout", json!(0.1)),
        "tokenizer.json: model.dropout is 0.1, which gives other ids at each call; set it to null"
    );
}

#[test]
fn damaged_files_are_errors_wherever_they_end() {
    let whole = byte_level().to_string();
    for length in (0..whole.len()).step_by(97) {
        let mut end = length;
        while !whole.is_char_boundary(end) {
            end -= 1;
        }
        let error = Tokenizer::new(&whole.as_bytes()[..end], None).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer.json: "), "{error}");
    }
    let deep = format!("{{\"model\": {{}}, \"decoder\": {}1{}}}", "[".repeat(300), "]".repeat(300));
    assert!(Tokenizer::new(deep.as_bytes(), None).is_err());
}

fn reference(file: &Value) -> Inner {
    Inner::from_bytes(file.to_string()).unwrap()
}

proptest! {
    #[test]
    fn streamed_byte_level_text_is_the_decoded_text(
        ids in prop::collection::vec(0..BYTE_LEVEL_SIZE + 2, 0..60), skip: bool,
    ) {
        let file = byte_level();
        let special = if skip { Special::Skip } else { Special::Keep };
        let want = reference(&file).decode(&ids, skip).unwrap();
        let tokenizer = load(&file);
        prop_assert_eq!(stream(&tokenizer, &ids, special).concat(), &*want);
        prop_assert_eq!(tokenizer.decode(&ids, special), want);
    }

    #[test]
    fn streamed_fallback_text_is_the_decoded_text(
        ids in prop::collection::vec(prop_oneof![0..FALLBACK_SIZE, 259..FALLBACK_SIZE], 0..40), skip: bool,
    ) {
        let special = if skip { Special::Skip } else { Special::Keep };
        for file in [fallback(), metaspace()] {
            let tokenizer = load(&file);
            let streamed = stream(&tokenizer, &ids, special).concat();
            prop_assert_eq!(&streamed, &tokenizer.decode(&ids, special));
            // Where a run of bytes is not UTF-8 the reference replaces all of it, here only the bad bytes.
            let want = reference(&file).decode(&ids, skip).unwrap();
            if !want.contains('\u{FFFD}') {
                prop_assert_eq!(streamed, want);
            }
        }
    }

    #[test]
    fn characters_in_fallback_bytes_stream_whole(text in "[a-z é東🙂▁]{0,20}") {
        let tokenizer = load(&fallback());
        let ids: Vec<u32> = text.bytes().map(|byte| u32::from(byte) + 3).collect();
        let want = reference(&fallback()).decode(&ids, false).unwrap();
        prop_assert_eq!(stream(&tokenizer, &ids, Special::Keep).concat(), want);
    }
}
