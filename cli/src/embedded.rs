//! The small model inside the program.

use bytes::Bytes;

/// Name that logs and reports use.
pub const NAME: &str = "bard (embedded)";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        vec![$((
            $name.to_string(),
            Bytes::from_static(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../core/fixtures/bard/", $name))),
        )),*]
    };
}

/// Its checkpoint, file by file.
pub fn files() -> Vec<(String, Bytes)> {
    files![
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    ]
}
