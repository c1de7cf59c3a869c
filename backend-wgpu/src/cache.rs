//! Compiled pipelines between runs, in the user's cache directory, where the driver offers it.

use std::path::{Path, PathBuf};

/// What the driver compiled, and where it is kept.
pub(crate) struct Cache {
    raw: wgpu::PipelineCache,
    path: PathBuf,
    /// Bytes of the file when it was read.
    known: usize,
}

impl Cache {
    /// The cache of an opened device; none where the device has no such feature or the user no such directory. A file
    /// that cannot be read or is another driver's is as good as none.
    pub fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = directory()?.join(wgpu::util::pipeline_cache_key(info)?);
        let data = std::fs::read(&path).ok();
        let descriptor = wgpu::PipelineCacheDescriptor {
            label: Some("pipelines"),
            data: data.as_deref(),
            fallback: true,
        };
        // SAFETY: the file is the user's own and was written by `store` from what a cache of this key returned; wgpu
        // compares its header with the adapter's and drops what does not fit.
        let raw = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(Self { raw, path, known: data.map_or(0, |data| data.len()) })
    }

    /// For the creation of pipelines.
    pub fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let data = self.raw.get_data().filter(|data| data.len() != self.known);
        // A cache that cannot be kept costs the next run some time and nothing else.
        let _ = data.map(|data| store(&self.path, &data));
    }
}

fn directory() -> Option<PathBuf> {
    let given = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    given("WHIPSNAKE_CACHE")
        .or_else(|| given("XDG_CACHE_HOME").map(|root| root.join("whipsnake")))
        .or_else(|| given("LOCALAPPDATA").map(|root| root.join("whipsnake")))
        .or_else(|| given("HOME").map(|root| root.join(".cache/whipsnake")))
        .map(|root| root.join("pipelines"))
}

/// Writes beside the target and renames, so that a reader never sees half a file.
fn store(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    std::fs::write(&partial, bytes)?;
    std::fs::rename(&partial, path)
}
