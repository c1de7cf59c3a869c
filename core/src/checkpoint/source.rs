//! Sources of stored bytes: files in memory or mapped, and a check on what passes through.

use crate::error::{Error, Result};
use crate::weight::{LocalFuture, Plane, Source};
use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;

/// A file whose bytes are all addressable: embedded, read, or mapped.
pub(super) struct File {
    /// The bytes.
    pub bytes: Bytes,
    /// The mapping behind them.
    #[cfg(not(target_arch = "wasm32"))]
    pub map: Option<std::sync::Arc<memmap2::Mmap>>,
}

impl From<Bytes> for File {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            #[cfg(not(target_arch = "wasm32"))]
            map: None,
        }
    }
}

/// Files by number. Reads share their bytes without a copy.
pub(super) struct Files(pub Vec<File>);

impl Source for Files {
    fn read(&self, file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        match self.0.get(file) {
            Some(file) => file.bytes.read(0, range),
            None => {
                let text = format!("file {file} of {}", self.0.len());
                Box::pin(std::future::ready(Err(Error::checkpoint(text))))
            }
        }
    }

    #[cfg(unix)]
    fn forget(&self, file: usize, range: Range<u64>) {
        let Some(map) = self.0.get(file).and_then(|file| file.map.as_ref()) else { return };
        let (Ok(start), Ok(end)) = (usize::try_from(range.start), usize::try_from(range.end))
        else {
            return;
        };
        if start >= end || end > map.len() {
            return;
        }
        // SAFETY: the mapping is of a file and never written: a dropped page comes back from the file as it was.
        let dropped = unsafe {
            map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
        };
        if let Err(error) = dropped {
            tracing::debug!(%error, "mapped pages stay resident");
        }
    }
}

/// Block scales: the bytes pass through unchanged, a NaN among them is an error that names the tensor. Checking them
/// as they are read costs no second read of gigabytes.
struct CheckedScales {
    inner: Rc<dyn Source>,
    name: String,
}

impl Source for CheckedScales {
    fn read(&self, file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let start = range.start;
            let bytes = self.inner.read(file, range).await?;
            // No early exit inside a chunk, so that the scan is a few vector instructions.
            let bad = |chunk: &[u8]| chunk.iter().fold(false, |bad, b| bad | (b & 0x7f == 0x7f));
            match bytes.chunks(4096).any(bad) {
                false => Ok(bytes),
                true => {
                    let at = bytes.iter().position(|b| b & 0x7f == 0x7f).unwrap_or(0);
                    Err(Error::checkpoint(format!(
                        "tensor `{}`: a block scale is NaN (byte {} of its file); the checkpoint is damaged, download it again",
                        self.name,
                        start.saturating_add(u64::try_from(at).unwrap_or(0))
                    )))
                }
            }
        })
    }

    fn forget(&self, file: usize, range: Range<u64>) {
        self.inner.forget(file, range);
    }
}

/// `plane` with its scales checked on the way.
pub(super) fn checked_scales(plane: Plane, name: &str) -> Plane {
    let source = Rc::new(CheckedScales { inner: plane.source, name: name.to_owned() });
    Plane { source, ..plane }
}

/// Files mapped or read from a folder.
#[cfg(not(target_arch = "wasm32"))]
pub(super) mod folder {
    use crate::error::{Error, Result};
    use bytes::Bytes;
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;

    /// Names of the files in `dir`.
    pub fn names(dir: &Path) -> Result<BTreeSet<String>> {
        if dir.is_file() {
            return Err(Error::checkpoint(format!(
                "{}: a file, want the folder that holds config.json and the weights",
                dir.display()
            )));
        }
        let entries = std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))?;
        let mut names = BTreeSet::new();
        for entry in entries {
            let entry = entry.map_err(|e| Error::io(dir, &e))?;
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    }

    /// A small file, read.
    pub fn read(path: &Path) -> Result<Bytes> {
        const MAX_BYTES: u64 = 256 << 20;
        let bytes = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?.len();
        if bytes > MAX_BYTES {
            return Err(Error::checkpoint(format!(
                "{}: {bytes} bytes, at most {MAX_BYTES} are read",
                path.display()
            )));
        }
        Ok(std::fs::read(path).map_err(|e| Error::io(path, &e))?.into())
    }

    /// A large file, mapped: pages come in as they are read and can be dropped again.
    pub fn map(path: &Path) -> Result<super::File> {
        let file = File::open(path).map_err(|e| Error::io(path, &e))?;
        if file.metadata().map_err(|e| Error::io(path, &e))?.len() == 0 {
            return Ok(Bytes::new().into());
        }
        // SAFETY: the mapping is read-only and lives as long as the bytes handed out. Should another process shorten
        // the file meanwhile, a read ends the process instead of returning wrong data; every loader of mapped
        // weights shares that limit.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io(path, &e))?;
        let map = Arc::new(map);
        Ok(super::File { bytes: Bytes::from_owner(Shared(map.clone())), map: Some(map) })
    }

    struct Shared(Arc<memmap2::Mmap>);

    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
}
