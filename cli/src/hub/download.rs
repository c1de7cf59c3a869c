//! Brings a model into the cache: resumable, checked, safe against a second downloader.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use indicatif::HumanBytes;
use ureq::http::{HeaderMap, StatusCode};

use super::cache::{self, Repo};
use super::client::{Client, Failure, Meta};
use super::listing::Listing;
use super::progress::{Progress, note};
use super::verify::Hasher;
use super::{Hub, ModelId};
use crate::failure::Hinted;

const CHUNK_BYTES: usize = 256 << 10;

/// Downloads what `id` lacks and gives the folder of its files. The revision is recorded last, so
/// that a download that was cut off is taken up again.
pub fn model(hub: &Hub, id: &ModelId, repo: &Repo) -> anyhow::Result<PathBuf> {
    let client = Client::new(hub)?;
    let ModelId { owner, name, revision } = id;
    let list = client.address(&["api", "models", owner, name, "revision", revision]);
    let Listing { commit, files } = Listing::parse(&client.json(&list)?)?;
    let snapshot = repo.snapshot_of(&commit);
    for file in &files {
        let to = snapshot.join(file);
        if to.is_file() {
            continue;
        }
        let from = client.address(&[owner, name, "resolve", &commit, file]);
        let job = Job { hub, client: &client, repo, commit: &commit, name: file, from, to };
        job.run().with_context(|| file.clone())?;
    }
    if let Some(file) = cache::first_missing(&snapshot)? {
        bail!("the repository lacks {file}, which its shard index names");
    }
    repo.set_reference(revision, &commit)?;
    Ok(snapshot)
}

/// One file on its way.
struct Job<'a> {
    hub: &'a Hub,
    client: &'a Client,
    repo: &'a Repo,
    commit: &'a str,
    name: &'a str,
    from: String,
    to: PathBuf,
}

impl Job<'_> {
    fn run(&self) -> anyhow::Result<()> {
        let meta = self.client.meta(&self.from)?;
        let key = match &meta.checksum {
            Some(checksum) => checksum.hex().to_owned(),
            None => format!("{}.{}", self.commit, self.name),
        };
        let blob = self.repo.blob(&key);
        let wait = format!("waiting for another process that downloads {}", self.name);
        let _lock = self.repo.lock(&key, || note(&wait, self.hub.quiet))?;
        if self.to.is_file() {
            // The other process has brought it, and may be reading it by now.
            return Ok(());
        }
        let there = fs::metadata(&blob).is_ok_and(|found| found.len() == meta.size);
        if !there {
            let partial = self.repo.blob(&format!("{key}.incomplete"));
            self.receive(&partial, &meta)?;
            fs::rename(&partial, &blob).map_err(|error| self.disk_error(error, &blob))?;
        }
        cache::publish(&blob, &self.to)
    }

    /// Fills `path` from wherever an earlier run left off and checks the whole.
    fn receive(&self, path: &Path, meta: &Meta) -> anyhow::Result<()> {
        cache::make_parent(path)?;
        let opened = Partial::open(path, meta);
        let mut partial = opened.map_err(|error| self.disk_error(error, path))?;
        let progress = Progress::start(self.name, partial.length, meta.size, self.hub.quiet);
        // A long file may lose its connection often: only failures without progress count.
        while partial.length < meta.size {
            let before = partial.length;
            self.client.retry(|| match self.receive_some(&mut partial, &progress) {
                Err(failure) if failure.again && partial.length > before => Ok(()),
                result => result,
            })?;
        }
        self.check(partial, path)
    }

    /// Takes bytes until the end or until the connection breaks.
    fn receive_some(&self, partial: &mut Partial, progress: &Progress) -> Result<(), Failure> {
        let disk = |error| Failure::from(self.disk_error(error, &self.to));
        let start = Some(partial.length).filter(|&length| length > 0);
        let (mut response, _) = self.client.get(&self.from, start)?;
        match (response.status(), start) {
            (StatusCode::PARTIAL_CONTENT, Some(start)) => expect_start(response.headers(), start)?,
            (StatusCode::OK, _) => partial.restart().map_err(disk)?,
            (status, _) => {
                partial.restart().map_err(disk)?;
                return Err(Failure::again(anyhow!("the server answers {status}")));
            }
        }
        let mut reader = response.body_mut().as_reader();
        let mut buffer = vec![0; CHUNK_BYTES];
        while partial.length < partial.size {
            let read = match reader.read(&mut buffer) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                result => result,
            };
            let count = read.map_err(|error| {
                let at = format!("broke off after {} of {} bytes", partial.length, partial.size);
                Failure::again(anyhow!(error).context(at))
            })?;
            // Bytes past the announced end are not taken: the checksum judges those before it.
            let room = usize::try_from(partial.size - partial.length).unwrap_or(usize::MAX);
            partial.append(&buffer[..count.min(room)]).map_err(disk)?;
            progress.at(partial.length);
        }
        Ok(())
    }

    fn check(&self, partial: Partial, path: &Path) -> anyhow::Result<()> {
        let Some((hasher, want)) = partial.hasher else {
            tracing::warn!(
                "{}: the server gives no checksum, only its size was checked",
                self.name
            );
            return Ok(());
        };
        let found = hasher.finish();
        if found == want {
            return Ok(());
        }
        fs::remove_file(path).map_err(|error| self.disk_error(error, path))?;
        let error = format!("the checksum of {} is {found}, want {want}; removed it", self.name);
        Err(Hinted::new(error).hint("download it again").into())
    }

    /// What a disk refused, with what helps.
    fn disk_error(&self, error: std::io::Error, path: &Path) -> anyhow::Error {
        let cache = self.hub.cache.display();
        let hint = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                format!("free space in {cache}, or set HF_HOME to a folder on another disk")
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                format!("make {cache} writable, or set HF_HOME to a folder that is")
            }
            _ => return anyhow!(error).context(format!("cannot write {}", path.display())),
        };
        Hinted::new(format!("cannot write {}: {error}", path.display())).hint(hint).into()
    }
}

/// A file that is still arriving, with the hash of what is there.
struct Partial {
    file: File,
    length: u64,
    size: u64,
    hasher: Option<(Hasher, String)>,
    fresh: Option<(Hasher, String)>,
}

impl Partial {
    fn open(path: &Path, meta: &Meta) -> std::io::Result<Self> {
        let options = File::options().create(true).truncate(false).read(true).write(true).clone();
        let checksum = meta.checksum.as_ref();
        let fresh = checksum.map(|sum| (sum.hasher(meta.size), sum.hex().to_owned()));
        let hasher = fresh.clone();
        let mut partial =
            Self { file: options.open(path)?, length: 0, size: meta.size, hasher, fresh };
        if partial.file.metadata()?.len() > meta.size {
            partial.restart()?;
        }
        partial.hash_what_is_there()?;
        Ok(partial)
    }

    fn hash_what_is_there(&mut self) -> std::io::Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let count = self.file.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            self.count(&buffer[..count]);
        }
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.count(bytes);
        Ok(())
    }

    fn restart(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.length = 0;
        self.hasher.clone_from(&self.fresh);
        Ok(())
    }

    fn count(&mut self, bytes: &[u8]) {
        self.length += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if let Some((hasher, _)) = &mut self.hasher {
            hasher.update(bytes);
        }
    }
}

/// A server that resumes elsewhere than it was asked to would corrupt the file.
fn expect_start(headers: &HeaderMap, start: u64) -> anyhow::Result<()> {
    let range = headers.get("content-range").and_then(|value| value.to_str().ok());
    let range = range.unwrap_or_default();
    if range.starts_with(&format!("bytes {start}-")) {
        return Ok(());
    }
    let size = HumanBytes(start);
    bail!("asked to resume after {size}, the server sends {range:?}")
}
