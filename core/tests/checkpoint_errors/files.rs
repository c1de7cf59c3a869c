//! Files that are missing, damaged or contradict each other.

use super::*;
use serde_json::json;
use std::collections::BTreeMap;

#[test]
fn files_that_are_missing_or_of_another_kind() {
    let without = |name: &str| {
        let mut files = tiny().files();
        files.retain(|(n, _)| n != name);
        files
    };
    let beside = |name: &str| {
        let mut files = without("model.safetensors");
        files.push((name.into(), Bytes::from_static(b"x")));
        refusal(files)
    };
    assert_eq!(
        refusal(without("config.json")),
        "config.json is missing; is this the folder of a checkpoint?"
    );
    assert_eq!(
        refusal(without("model.safetensors")),
        "neither model.safetensors nor model.safetensors.index.json is here; is this the folder of a checkpoint?"
    );
    assert_eq!(
        beside("model-Q4_K_M.gguf"),
        "model-Q4_K_M.gguf is GGUF, which is not read; use the original safetensors checkpoint"
    );
    assert_eq!(
        beside("pytorch_model.bin"),
        "pytorch_model.bin is a pickled PyTorch file, which is not read since it can run code; convert it with save_pretrained, which writes safetensors"
    );
    assert_eq!(
        beside("consolidated.00.pth"),
        "consolidated.00.pth is a pickled PyTorch file, which is not read since it can run code; convert it with save_pretrained, which writes safetensors"
    );
    assert_eq!(
        beside("weights.npz"),
        "weights.npz is an MLX archive, which is not read; use the original safetensors checkpoint"
    );
    assert_eq!(
        beside(SECOND),
        "model.safetensors.index.json is missing though shards such as model-00002-of-00002.safetensors are here; download it too"
    );
}

#[test]
fn headers_that_do_not_fit_their_file() {
    let whole = safetensors(&tiny().tensors);
    assert_eq!(with_file(""), "model.safetensors: the file is empty; download it again");
    assert_eq!(
        with_file("short"),
        "model.safetensors: 5 bytes are too few for a safetensors file; download it again"
    );
    assert_eq!(
        with_file("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        "model.safetensors: a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
    );
    assert_eq!(
        with_file(&[0xff; 32][..]),
        "model.safetensors: the header claims 18446744073709551615 bytes, the format allows 100000000; this is no safetensors file or a damaged one"
    );
    let short = whole.slice(..100);
    let length = u64::from_le_bytes(*whole.first_chunk().unwrap());
    assert_eq!(
        with_file(short),
        format!(
            "model.safetensors: the header claims {length} bytes, the file has 100; it is truncated, download it again"
        )
    );
    let data = whole.len() as u64 - 8 - length;
    assert_eq!(
        with_file(whole.slice(..whole.len() - 3)),
        format!(
            "model.safetensors: the tensors take {data} bytes, the file has {} after its header; it is truncated, download it again",
            data - 3
        )
    );
    let longer = [&whole[..], b"more"].concat();
    assert_eq!(
        with_file(longer),
        format!(
            "model.safetensors: the tensors take {data} bytes, the file has {} after its header; what follows them is unknown",
            data + 4
        )
    );
}

#[test]
fn headers_that_contradict_themselves() {
    let tensor = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let one = |dtype: &str, shape: &str, begin, end, data| {
        with_file(raw(&format!(r#"{{"a":{}}}"#, tensor(dtype, shape, begin, end)), data))
    };
    let two = |second: String| {
        with_file(raw(&format!(r#"{{"a":{},"b":{second}}}"#, tensor("F32", "[2]", 0, 8)), 16))
    };
    assert_eq!(
        with_file(raw("{nonsense", 0)),
        "model.safetensors: the header is not valid: key must be a string at line 1 column 2"
    );
    assert_eq!(
        with_file(raw("[]", 0)),
        "model.safetensors: the header is not valid: invalid type: sequence, expected an object of tensors at line 1 column 0"
    );
    assert_eq!(with_file(raw("{}", 0)), "model.safetensors holds no tensors");
    assert_eq!(
        one("F32", "[2, 3]", 0, 23, 23),
        "model.safetensors: tensor `a`: bytes 0 to 23, but F32 [2, 3] takes 24"
    );
    assert_eq!(
        one("F32", "[2]", 8, 0, 8),
        "model.safetensors: tensor `a`: bytes 8 to 0, but F32 [2] takes 8"
    );
    assert_eq!(
        one("F32", "[4294967296, 4294967296]", 0, 8, 8),
        "model.safetensors: tensor `a`: F32 [4294967296, 4294967296] is no size in whole bytes"
    );
    assert_eq!(
        one("F4", "[3]", 0, 1, 1),
        "model.safetensors: tensor `a`: F4 [3] is no size in whole bytes"
    );
    assert_eq!(
        two(tensor("F32", "[2]", 4, 12)),
        "model.safetensors: tensor `b`: begins at byte 4 of the data, want 8: tensors neither overlap nor leave holes"
    );
    assert_eq!(
        two(tensor("F32", "[1]", 12, 16)),
        "model.safetensors: tensor `b`: begins at byte 12 of the data, want 8: tensors neither overlap nor leave holes"
    );
    let twice =
        format!(r#"{{"a":{},"a":{}}}"#, tensor("F32", "[2]", 0, 8), tensor("F32", "[2]", 8, 16));
    assert_eq!(with_file(raw(&twice, 16)), "model.safetensors: tensor `a`: described twice");
    assert_eq!(
        one("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4, 4),
        "model.safetensors: the header is not valid: tensor `a`: 9 dimensions, at most 8 at line 1 column 70"
    );
    let text = one("F9", "[1]", 0, 4, 4);
    let start = "model.safetensors: the header is not valid: tensor `a`: unknown variant `F9`, expected one of `BOOL`";
    assert!(text.starts_with(start), "{text}");
}

/// The small checkpoint in two shards, the index and the files around them.
struct Sharded {
    small: Vec<(String, Bytes)>,
    first: BTreeMap<String, Tensor>,
    second: BTreeMap<String, Tensor>,
    index: Value,
}

impl Sharded {
    fn new() -> Self {
        let tiny = tiny();
        let (first, second, index) = tiny.shards();
        Self { small: tiny.small(), first, second, index }
    }

    fn one(&self) -> (&'static str, Bytes) {
        (FIRST, safetensors(&self.first))
    }

    fn two(&self) -> (&'static str, Bytes) {
        (SECOND, safetensors(&self.second))
    }

    /// The refusal with these files beside `index`.
    fn with(&self, index: &Value, files: &[(&str, Bytes)]) -> String {
        let mut all = self.small.clone();
        all.push((INDEX.into(), index.to_string().into()));
        all.extend(files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())));
        refusal(all)
    }

    /// The refusal of both shards with the index changed.
    fn indexed(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut index = self.index.clone();
        change(&mut index);
        self.with(&index, &[self.one(), self.two()])
    }
}

#[test]
fn shards_that_do_not_fit_together() {
    let all = Sharded::new();
    let (one, two) = (all.one(), all.two());
    let with = |files: &[(&str, Bytes)]| all.with(&all.index, files);
    assert_eq!(with(&[one.clone(), two.clone()]), "not refused");
    assert_eq!(
        with(std::slice::from_ref(&one)),
        "model-00002-of-00002.safetensors is missing: model.safetensors.index.json names it among 2 shards; download it into the same folder"
    );
    assert_eq!(
        with(&[one.clone(), (SECOND, Bytes::new())]),
        "model-00002-of-00002.safetensors: the file is empty; download it again"
    );
    assert_eq!(
        with(&[one.clone(), two.clone(), ("model.safetensors", two.1.clone())]),
        "model.safetensors is here beside model.safetensors.index.json, which does not name it; remove the one that is out of date"
    );
    let name = "backbone.embeddings.weight";
    let mut both = all.second.clone();
    both.insert(name.into(), all.first[name].clone());
    assert_eq!(
        with(&[one, (SECOND, safetensors(&both))]),
        "tensor `backbone.embeddings.weight` is in two shards, model-00001-of-00002.safetensors and model-00002-of-00002.safetensors; download both again"
    );
}

#[test]
fn indexes_that_the_shards_contradict() {
    let all = Sharded::new();
    assert_eq!(
        all.indexed(|index| index["weight_map"]["backbone.gone.weight"] = json!(FIRST)),
        "model.safetensors.index.json is out of date: it says that `backbone.gone.weight` is in model-00001-of-00002.safetensors, but it is not there; download the index and the shards again"
    );
    assert_eq!(
        all.indexed(|index| index["weight_map"]["lm_head.weight"] = json!(FIRST)),
        "model.safetensors.index.json is out of date: it says that `lm_head.weight` is in model-00001-of-00002.safetensors, but it is in model-00002-of-00002.safetensors; download the index and the shards again"
    );
    assert_eq!(
        all.indexed(|index| {
            index["weight_map"].as_object_mut().unwrap().remove("lm_head.weight");
        }),
        "model.safetensors.index.json is out of date: it does not name `lm_head.weight`, which is in model-00002-of-00002.safetensors; download the index and the shards again"
    );
    assert_eq!(
        all.indexed(|index| index["weight_map"]["lm_head.weight"] = json!("../other.safetensors")),
        "model.safetensors.index.json: `lm_head.weight` is said to be in \"../other.safetensors\", want the plain name of a .safetensors file"
    );
    assert_eq!(
        all.indexed(|index| *index = json!({})),
        "model.safetensors.index.json: no weight_map; download it again"
    );
    assert_eq!(
        all.indexed(|index| *index = json!({"weight_map": {}})),
        "model.safetensors.index.json: weight_map is empty; download it again"
    );
}
