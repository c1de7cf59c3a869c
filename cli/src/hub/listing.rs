//! A model's file list as a server gives it: which files are wanted, which names are refused.

use anyhow::bail;
use serde::Deserialize;

use super::model_id::is_commit;
use crate::failure::Hinted;

/// The file that makes a folder a model.
pub const CONFIG: &str = "config.json";
/// The file that says which shard holds which tensor.
pub const INDEX: &str = "model.safetensors.index.json";

/// The commit that a revision stands for, and the files wanted from it in the order of download.
#[derive(Debug, PartialEq)]
pub struct Listing {
    /// Full commit hash.
    pub commit: String,
    /// Names in the model's top folder, weights last.
    pub files: Vec<String>,
}

impl Listing {
    /// Reads the answer of `/api/models/OWNER/NAME/revision/REVISION`.
    pub fn parse(json: &str) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Answer {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let answer: Answer = serde_json::from_str(json).map_err(|error| {
            anyhow::anyhow!("the server's file list is not understood: {error}")
        })?;
        if !is_commit(&answer.sha) {
            bail!("the server names the commit {:?}, want 40 hex digits", answer.sha);
        }
        let names = answer.siblings.into_iter().map(|sibling| sibling.rfilename);
        let mut files: Vec<String> = names.collect();
        if let Some(name) = files.iter().find(|name| !is_safe(name)) {
            bail!("the server lists an unsafe file name {name:?}");
        }
        files.retain(|name| is_wanted(name));
        // Weights last, so that a snapshot with weights has everything else.
        files.sort_by_key(|name| (name.ends_with(".safetensors"), name.clone()));
        files.dedup();
        for (needed, found) in [
            (CONFIG, files.iter().any(|name| name == CONFIG)),
            ("*.safetensors", files.iter().any(|name| name.ends_with(".safetensors"))),
        ] {
            if !found {
                let error =
                    Hinted::new(format!("the repository holds no {needed}, so it is no model"));
                return Err(error.hint("name a repository in the safetensors layout").into());
            }
        }
        Ok(Self { commit: answer.sha, files })
    }
}

/// Whether a server's file name stays inside the folder it is put in, on every system.
pub fn is_safe(name: &str) -> bool {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255;
    name.len() <= 1024
        && !name.contains(['\\', ':'])
        && !name.contains(char::is_control)
        && name.split('/').all(plain)
}

/// Whether this runtime reads the file. Pickled weights never are: they can run code.
fn is_wanted(name: &str) -> bool {
    let exact = [CONFIG, INDEX, "generation_config.json", "hf_quant_config.json"];
    let text = name.starts_with("tokenizer") || name.starts_with("chat_template");
    let unread = [".bin", ".pth", ".pt", ".py"].iter().any(|end| name.ends_with(end));
    let weights = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    !name.contains('/') && !unread && (exact.contains(&name) || text || weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn listing(names: &[&str]) -> Result<Vec<String>, String> {
        let siblings: Vec<_> =
            names.iter().map(|name| serde_json::json!({"rfilename": name})).collect();
        let json = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
        Listing::parse(&json).map(|listing| listing.files).map_err(|error| error.to_string())
    }

    #[test]
    fn only_what_the_runtime_reads_is_wanted_and_weights_come_last() {
        let names = [
            "README.md",
            "model-1.safetensors",
            "config.json",
            "pytorch_model.bin",
            "x.pth",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "onnx/config.json",
            "generation_config.json",
            "hf_quant_config.json",
            "tokenizer.py",
            INDEX,
            "sub/model.safetensors",
            "consolidated.pth",
            "tokenizer.bin",
        ];
        let wanted = [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "hf_quant_config.json",
            INDEX,
            "tokenizer.json",
            "tokenizer_config.json",
            "model-1.safetensors",
        ];
        assert_eq!(listing(&names).unwrap(), wanted);
    }

    #[test]
    fn a_name_that_leaves_its_folder_is_refused() {
        for name in [
            "../config.json",
            "/etc/passwd",
            "a/../../b",
            "a\\..\\b",
            "C:evil",
            "a//b",
            "",
            ".",
            "x\u{0}",
            "x\n",
            "x\u{1b}[2J",
            "a/",
            "..",
        ] {
            let error = listing(&["config.json", "a.safetensors", name]).unwrap_err();
            assert_eq!(error, format!("the server lists an unsafe file name {name:?}"));
        }
    }

    #[test]
    fn what_is_no_model_is_told() {
        let error = listing(&["a.safetensors", "README.md"]).unwrap_err();
        assert_eq!(error, "the repository holds no config.json, so it is no model");
        let error = listing(&["config.json", "pytorch_model.bin"]).unwrap_err();
        assert_eq!(error, "the repository holds no *.safetensors, so it is no model");
    }

    #[test]
    fn a_commit_is_forty_hex_digits() {
        let json = r#"{"sha": "../../x", "siblings": []}"#;
        let error = Listing::parse(json).unwrap_err().to_string();
        assert_eq!(error, r#"the server names the commit "../../x", want 40 hex digits"#);
    }
}
