//! The cache on disk: what is there, what a snapshot lacks, how a file gets in.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::listing;
use super::model_id::{ModelId, is_commit};

/// A shard index names some hundred files; a larger one is no index.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// One model's folder in the cache.
#[derive(Clone, Debug)]
pub struct Repo {
    folder: PathBuf,
    locks: PathBuf,
}

impl Repo {
    /// Where `id` lies in `cache`, there or not.
    pub fn new(cache: &Path, id: &ModelId) -> Self {
        let name = format!("models--{}--{}", id.owner, id.name);
        Self { folder: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    /// The snapshot folder of a branch, tag or commit, if one is there.
    pub fn snapshot(&self, revision: &str) -> Option<PathBuf> {
        let commit = match fs::read_to_string(self.reference(revision)) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => revision.to_owned(),
        };
        let folder = self.snapshot_of(&commit);
        (is_commit(&commit) && folder.is_dir()).then_some(folder)
    }

    /// The folder of a commit's files.
    pub fn snapshot_of(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Records that a branch or tag is at `commit`.
    pub fn set_reference(&self, revision: &str, commit: &str) -> anyhow::Result<()> {
        if revision == commit {
            return Ok(());
        }
        let path = self.reference(revision);
        make_parent(&path)?;
        fs::write(&path, commit).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Where a file with a known hash is kept, whatever snapshots it is part of.
    pub fn blob(&self, hash: &str) -> PathBuf {
        self.folder.join("blobs").join(hash)
    }

    /// Waits until no other process downloads `key`; holds others off until it is dropped.
    pub fn lock(&self, key: &str, waiting: impl FnOnce()) -> anyhow::Result<File> {
        let path = self.locks.join(format!("{key}.lock"));
        make_parent(&path)?;
        let cannot = || format!("cannot lock {}", path.display());
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(cannot)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().with_context(cannot)?;
                Ok(file)
            }
            Err(TryLockError::Error(error)) => Err(error).with_context(cannot),
        }
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.folder.join("refs").join(revision)
    }
}

/// Makes the folder that will hold `path`.
pub fn make_parent(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Makes a finished blob visible in a snapshot: by a link, or where the file system has none, by
/// moving it there.
pub fn publish(blob: &Path, file: &Path) -> anyhow::Result<()> {
    make_parent(file)?;
    let name = blob.file_name().context("a blob without a name")?;
    let target = Path::new("../../blobs").join(name);
    if fs::symlink_metadata(file).is_ok() {
        fs::remove_file(file).with_context(|| format!("cannot replace {}", file.display()))?;
    }
    if link(&target, file).is_ok() {
        return Ok(());
    }
    fs::rename(blob, file).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(unix)]
fn link(target: &Path, file: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, file)
}

#[cfg(windows)]
fn link(target: &Path, file: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, file)
}

#[cfg(not(any(unix, windows)))]
fn link(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// The first file that a model cannot do without and a snapshot lacks: its configuration or a
/// part of its weights.
pub fn first_missing(snapshot: &Path) -> anyhow::Result<Option<String>> {
    if !snapshot.join(listing::CONFIG).is_file() {
        return Ok(Some(listing::CONFIG.to_owned()));
    }
    let index = snapshot.join(listing::INDEX);
    if index.is_file() {
        let shards = shards(&index)?;
        return Ok(shards.into_iter().find(|shard| !snapshot.join(shard).is_file()));
    }
    let entries =
        fs::read_dir(snapshot).with_context(|| format!("cannot read {}", snapshot.display()))?;
    let weights = |entry: fs::DirEntry| {
        entry.path().extension().is_some_and(|e| e == "safetensors") && entry.path().is_file()
    };
    let found = entries.filter_map(Result::ok).any(weights);
    Ok((!found).then(|| "*.safetensors".to_owned()))
}

/// The files that a shard index names.
fn shards(index: &Path) -> anyhow::Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::HashMap<String, String>,
    }
    let cannot = || format!("cannot read {}", index.display());
    let mut text = String::new();
    let file = File::open(index).with_context(cannot)?;
    file.take(MAX_INDEX_BYTES).read_to_string(&mut text).with_context(cannot)?;
    let index: Index = serde_json::from_str(&text).with_context(cannot)?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|shard| !listing::is_safe(shard)) {
        Some(shard) => bail!("the shard index names an unsafe file {shard:?}"),
        None => Ok(shards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn repo(cache: &Path) -> Repo {
        Repo::new(cache, &"own/name".parse().unwrap())
    }

    #[test]
    fn a_snapshot_is_found_by_branch_and_by_commit() {
        let cache = tempfile::tempdir().unwrap();
        let repo = repo(cache.path());
        assert_eq!(repo.snapshot("main"), None);
        fs::create_dir_all(repo.snapshot_of(COMMIT)).unwrap();
        assert_eq!(repo.snapshot("refs/pr/1"), None);
        repo.set_reference("refs/pr/1", COMMIT).unwrap();
        let folder = cache.path().join("models--own--name/snapshots").join(COMMIT);
        assert_eq!(repo.snapshot("refs/pr/1"), Some(folder.clone()));
        assert_eq!(repo.snapshot(COMMIT), Some(folder));
    }

    #[test]
    fn a_reference_cannot_point_out_of_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        let repo = repo(cache.path());
        fs::create_dir_all(repo.snapshot_of(COMMIT)).unwrap();
        repo.set_reference("main", "..").unwrap();
        assert_eq!(repo.snapshot("main"), None);
    }

    #[test]
    fn a_snapshot_needs_its_configuration_and_every_shard() {
        let folder = tempfile::tempdir().unwrap();
        let missing = || first_missing(folder.path()).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(missing().as_deref(), Some("config.json"));
        write("config.json", "{}");
        assert_eq!(missing().as_deref(), Some("*.safetensors"));
        write("a.safetensors", "");
        assert_eq!(missing(), None);
        write(listing::INDEX, r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#);
        assert_eq!(missing().as_deref(), Some("b.safetensors"));
        write(listing::INDEX, r#"{"weight_map": {"x": "../../a.safetensors"}}"#);
        assert!(first_missing(folder.path()).is_err());
    }

    #[test]
    fn a_second_downloader_waits_for_the_first() {
        let cache = tempfile::tempdir().unwrap();
        let repo = repo(cache.path());
        let held = repo.lock("key", || panic!("nobody else is there")).unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let other = std::thread::spawn({
            let repo = repo.clone();
            move || drop(repo.lock("key", || send.send(()).unwrap()).unwrap())
        });
        receive.recv().unwrap();
        drop(held);
        other.join().unwrap();
    }
}
