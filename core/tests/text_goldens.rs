//! Token ids, decoded text and rendered conversations equal those of the public implementations
//! that made the goldens.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use whipsnake_core::chat::{ChatTemplate, Conversation, find_templates};
use whipsnake_core::tokenizer::{Special, Tokenizer};

struct Golden {
    name: String,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    cases: Value,
}

/// Every golden checkpoint that has a tokenizer.
fn goldens() -> Vec<Golden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden");
    let mut folders: Vec<PathBuf> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| {
        folder.join("golden.json").is_file() && folder.join("tokenizer.json").is_file()
    });
    folders.sort();
    assert!(!folders.is_empty(), "no golden checkpoint has a tokenizer");
    folders.iter().map(|folder| golden(folder)).collect()
}

fn golden(folder: &Path) -> Golden {
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let config = read("tokenizer_config.json");
    let tokenizer = Tokenizer::new(&read("tokenizer.json"), Some(&config)).unwrap();
    let jinja = fs::read_to_string(folder.join("chat_template.jinja")).ok();
    let sources = find_templates(jinja.as_deref(), Some(&config)).unwrap();
    let template = ChatTemplate::new(&sources[0].source, tokenizer.special_tokens()).unwrap();
    let cases = serde_json::from_slice(&read("golden.json")).unwrap();
    Golden { name: folder.display().to_string(), tokenizer, template, cases }
}

fn cases<'a>(golden: &'a Golden, key: &str) -> &'a [Value] {
    let cases = golden.cases[key].as_array().unwrap();
    assert!(!cases.is_empty(), "{}: no {key} cases", golden.name);
    cases
}

fn ids(case: &Value) -> Vec<u32> {
    case["ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

#[test]
fn text_becomes_the_same_ids() {
    for golden in goldens() {
        for case in cases(&golden, "tokenizer") {
            let text = case["text"].as_str().unwrap();
            assert_eq!(
                golden.tokenizer.encode(text).unwrap(),
                ids(case),
                "{}: {text:?}",
                golden.name
            );
        }
    }
}

#[test]
fn ids_become_the_same_text_whole_and_streamed() {
    for golden in goldens() {
        for case in cases(&golden, "tokenizer") {
            for (special, key) in
                [(Special::Keep, "decoded"), (Special::Skip, "decoded_skip_special")]
            {
                let want = case[key].as_str().unwrap();
                assert_eq!(golden.tokenizer.decode(&ids(case), special), want, "{}", golden.name);
                let mut detokenizer = golden.tokenizer.detokenizer(special);
                let mut streamed: String =
                    ids(case).iter().map(|id| detokenizer.push(*id)).collect();
                streamed.push_str(&detokenizer.finish());
                assert_eq!(streamed, want, "{}", golden.name);
            }
        }
    }
}

#[test]
fn conversations_render_the_same() {
    for golden in goldens() {
        for case in cases(&golden, "chat") {
            let mut arguments: Map<String, Value> = case["options"].as_object().unwrap().clone();
            let add_generation_prompt =
                arguments.remove("add_generation_prompt") == Some(Value::Bool(true));
            let conversation = Conversation {
                messages: &case["messages"],
                tools: Some(&case["tools"]).filter(|tools| !tools.is_null()),
                arguments: &arguments,
                add_generation_prompt,
                now: None,
            };
            let name = format!("{}: {}", golden.name, case["name"]);
            let text = golden.template.render(&conversation).unwrap();
            assert_eq!(text, case["text"].as_str().unwrap(), "{name}");
            assert_eq!(golden.tokenizer.encode_chat(&text).unwrap(), ids(case), "{name}");
        }
    }
}
