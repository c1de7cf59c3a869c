//! The commands that run a model, as a user would call them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn whipsnake(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_whipsnake"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its arguments never reads its input.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = whipsnake(args, b"");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(args: &[&str], stdin: &[u8]) -> String {
    let output = whipsnake(args, stdin);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/fixtures").join(name);
    path.to_str().unwrap().to_string()
}

const CPU: [&str; 2] = ["--backend", "cpu"];

fn with_cpu<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().copied().chain(CPU).collect()
}

#[test]
fn the_embedded_model_writes_english() {
    let text = stdout(&with_cpu(&[
        "generate",
        "To be, or not to be",
        "--max-tokens",
        "60",
        "--seed",
        "1",
    ]));
    let words: Vec<_> = text.split_whitespace().collect();
    assert!(words.len() > 15, "{text:?}");
    let common = [
        "the", "and", "of", "to", "I", "a", "my", "in", "that", "is", "not", "with", "you", "it",
        "be",
    ];
    assert!(words.iter().filter(|w| common.contains(w)).count() >= 4, "{text:?}");
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_seed_another() {
    let run = |seed| stdout(&with_cpu(&["generate", "My lord,", "-n", "40", "--seed", seed]));
    assert_eq!(run("5"), run("5"));
    assert_ne!(run("5"), run("6"));
}

#[test]
fn speed_goes_to_standard_error() {
    let output = whipsnake(&with_cpu(&["generate", "My lord,", "-n", "4", "--greedy"]), b"");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("prefill ") && text.contains("; decode 3 tokens, "), "{text:?}");
}

#[test]
fn the_prompt_can_come_from_standard_input() {
    let args = with_cpu(&["generate", "-", "-n", "20", "--greedy"]);
    let piped = whipsnake(&args, b"Good morrow,");
    assert_eq!(
        String::from_utf8(piped.stdout).unwrap(),
        stdout(&with_cpu(&["generate", "Good morrow,", "-n", "20", "--greedy"]))
    );
}

#[test]
fn invalid_utf8_on_standard_input_is_named_by_its_place() {
    let text = stderr(&with_cpu(&["generate", "-"]), b"abc\xff");
    assert!(text.starts_with("error: ") && text.contains('3') && text.contains("UTF-8"), "{text}");
}

#[test]
fn an_empty_prompt_is_refused() {
    assert_eq!(
        stderr(&with_cpu(&["generate", "", "-q"]), b""),
        "error: prompt: no tokens, want at least one; give some text\n"
    );
}

#[test]
fn a_stop_string_is_never_shown() {
    let args = |stop| with_cpu(&["generate", "My lord,", "-n", "60", "--greedy", "--stop", stop]);
    let whole = stdout(&with_cpu(&["generate", "My lord,", "-n", "60", "--greedy"]));
    let stop = whole.split_whitespace().nth(3).unwrap();
    let stopped = stdout(&args(stop));
    assert!(!stopped.contains(stop), "{stopped:?} holds {stop:?}");
    assert!(
        whole.starts_with(stopped.trim_end_matches('\n')),
        "{stopped:?} is not the start of {whole:?}"
    );
}

#[test]
fn a_batch_gives_what_each_prompt_gives_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompts.txt");
    let prompts = ["Good morrow,", "The king is", "And God said,"];
    std::fs::write(&file, prompts.join("\n")).unwrap();
    let file = file.to_str().unwrap();
    let lines = stdout(&with_cpu(&["generate", "--batch", file, "-n", "12", "--greedy", "--json"]));
    for (index, prompt) in prompts.iter().enumerate() {
        let alone = stdout(&with_cpu(&["generate", prompt, "-n", "12", "--greedy"]));
        let done = lines.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        let mut done = done.filter(|e| e["type"] == "done" && e["index"] == index);
        assert_eq!(done.next().unwrap()["text"].as_str().unwrap().trim_end(), alone.trim_end());
    }
}

#[test]
fn logits_split_anyhow_are_the_same() {
    let model = fixture("golden/nemotron-nvfp4");
    let run = |split: &str| -> serde_json::Value {
        let args = ["logits", "--model", &model, "--tokens", "20,30,40,50,60", "--split", split];
        let rest = ["--rows", "0,4", "--greedy", "16", "--json", "-q"];
        serde_json::from_str(&stdout(&with_cpu(&[&args[..], &rest[..]].concat()))).unwrap()
    };
    let (whole, split) = (run("5"), run("1,3,1"));
    assert_eq!(whole["argmax"], split["argmax"]);
    assert_eq!(whole["greedy"], split["greedy"]);
    assert_eq!(whole["greedy"].as_array().unwrap().len(), 16);
    let rows = whole["logits"].as_array().unwrap();
    assert_eq!((rows.len(), rows[1].clone()), (2, whole["logits_last"].clone()));
}

#[test]
fn chat_answers_through_a_pipe() {
    let args = with_cpu(&["chat", "--seed", "3", "-q", "-n", "60"]);
    let output =
        whipsnake(&args, b"Shall I compare thee to a summer's day?\n/reset\nWhat news, my lord?\n");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.split_whitespace().count() >= 4, "{text:?}");
    assert!(!text.contains("<|im_end|>") && !text.contains("<think>"), "{text:?}");
}

#[test]
fn perplexity_of_the_held_out_text_is_the_documented_one() {
    let file = fixture("bard/heldout.txt");
    let short: String = std::fs::read_to_string(file).unwrap().chars().take(6000).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    std::fs::write(&path, short).unwrap();
    let json = stdout(&with_cpu(&["perplexity", "--file", path.to_str().unwrap(), "--json", "-q"]));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let bits = report["bits_per_byte"].as_f64().unwrap();
    assert!((1.2..2.2).contains(&bits), "{report}");
}

#[test]
fn an_unknown_model_says_what_to_try() {
    let text = stderr(&["generate", "x", "--model", "./no-such-folder"], b"");
    assert!(text.starts_with("error: ") && text.contains("no-such-folder"), "{text}");
}
