//! Prompts from the command line, standard input and batch files.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

/// More text than any context holds; a larger file is a mistake, not a prompt.
const MAX_BYTES: u64 = 256 << 20;

/// The prompt that an argument names: `-` is standard input, anything else is the text itself.
pub fn prompt(argument: &str) -> anyhow::Result<String> {
    match argument {
        "-" => text_of(std::io::stdin().lock(), "standard input"),
        text => Ok(text.to_owned()),
    }
}

/// A text file as it is, for example the one that `perplexity` measures.
pub fn text_file(path: &Path) -> anyhow::Result<String> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    text_of(file, &name)
}

/// The prompts of a batch file: one a line. In a `.jsonl` file each line is a JSON string or an
/// object with a `prompt`, so that a prompt can hold line ends. Blank lines are skipped.
pub fn batch(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = text_file(path)?;
    let json = path.extension().is_some_and(|extension| extension == "jsonl");
    let mut prompts = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        prompts.push(match json {
            true => json_prompt(line)
                .with_context(|| format!("{} line {}", path.display(), index + 1))?,
            false => line.to_owned(),
        });
    }
    if prompts.is_empty() {
        bail!("{} holds no prompt", path.display());
    }
    Ok(prompts)
}

/// Writes a question for a person who may be waiting at an empty terminal.
pub fn announce_stdin(argument: &str) {
    if argument == "-" && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        let _ = writeln!(std::io::stderr(), "reading the prompt; end it with Ctrl-D");
    }
}

/// Everything a reader holds, refused with the place of the first byte that is not UTF-8.
fn text_of(reader: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    reader
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    if u64::try_from(bytes.len())? > MAX_BYTES {
        bail!("{name} holds more than {} MiB of text", MAX_BYTES >> 20);
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[offset];
        anyhow::anyhow!("{name} is not UTF-8: byte 0x{byte:02x} at offset {offset}")
    })
}

fn json_prompt(line: &str) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "want a JSON string or an object with a string `prompt`")]
    enum Line {
        Text(String),
        Object { prompt: String },
    }
    Ok(match serde_json::from_str(line)? {
        Line::Text(prompt) | Line::Object { prompt } => prompt,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch_of(name: &str, text: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        batch(&path).map_err(|error| {
            format!("{error:#}").replace(&format!("{}/", folder.path().display()), "")
        })
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_offset() {
        let error = text_of(&b"caf\xe9 noir"[..], "standard input").unwrap_err();
        assert_eq!(error.to_string(), "standard input is not UTF-8: byte 0xe9 at offset 3");
        assert_eq!(text_of(&b"caf\xc3\xa9"[..], "x").unwrap(), "café");
    }

    #[test]
    fn text_is_kept_to_the_byte() {
        assert_eq!(text_of(&b" a\r\n\n"[..], "x").unwrap(), " a\r\n\n");
    }

    #[test]
    fn a_batch_is_one_prompt_a_line() {
        assert_eq!(batch_of("p.txt", "one\n\ntwo {\n").unwrap(), ["one", "two {"]);
        assert_eq!(batch_of("p.txt", "\n \n").unwrap_err(), "p.txt holds no prompt");
    }

    #[test]
    fn a_json_batch_holds_line_ends() {
        let lines = "\"a\\nb\"\n{\"prompt\": \"c\", \"id\": 7}\n";
        assert_eq!(batch_of("p.jsonl", lines).unwrap(), ["a\nb", "c"]);
        assert_eq!(
            batch_of("p.jsonl", "\"a\"\n{\"text\": 1}\n").unwrap_err(),
            "p.jsonl line 2: want a JSON string or an object with a string `prompt`"
        );
    }
}
