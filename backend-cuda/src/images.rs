//! Machine code of the kernel files: built in, from the cache on disk, or compiled now.
//!
//! At the first run nothing is in the cache. The first file that is missed sets every other thread of the machine to
//! compiling the rest, ahead of their use.

use crate::compile::Compiler;
use crate::kernels::{architecture, expand, sources};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use whipsnake_core::error::{Error, Result};

mod built {
    include!(concat!(env!("OUT_DIR"), "/built.rs"));
}

/// Files that take seconds to compile: they are begun first.
const SLOW: [&str; 13] = [
    "moe_matmul_sm90",
    "moe_matmul_bf16_sm90",
    "moe_matmul",
    "matmul",
    "norm_products_sixteen",
    "matmul_few",
    "norm_products_nvfp4",
    "norm_products",
    "norm_products_eight",
    "ssm_scan",
    "ssm_scan_wide",
    "ssm_scan_f32",
    "ssm_scan_f32_wide",
];

struct File {
    name: &'static str,
    source: &'static str,
    code: OnceLock<std::result::Result<Vec<u8>, String>>,
}

/// The machine code of one architecture.
pub(crate) struct Images {
    /// Or why the machine has none: everything is built in then.
    compiler: std::result::Result<Compiler, String>,
    architecture: String,
    files: Arc<Vec<File>>,
    /// Other threads, once they compile.
    ahead: OnceCell<Workers>,
}

/// Threads that go through a list, entry by entry. They stop at the next one and are waited for where this goes away: the
/// compiler's library must not be in use when the program ends.
struct Workers {
    next: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    fn start<T: Send + Sync + 'static>(
        count: usize,
        list: &Arc<Vec<T>>,
        work: impl Fn(&T) + Clone + Send + 'static,
    ) -> Self {
        let next = Arc::new(AtomicUsize::new(0));
        let start = |_| {
            let (next, list, work) = (next.clone(), list.clone(), work.clone());
            let run = move || {
                while let Some(entry) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(entry);
                }
            };
            match std::thread::Builder::new().name("kernels".into()).spawn(run) {
                Ok(thread) => Some(thread),
                Err(error) => {
                    tracing::debug!(%error, "no thread compiles ahead");
                    None
                }
            }
        };
        let threads = (0..count).filter_map(start).collect();
        Self { next, threads }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Behind the end of any list, with room to count on.
        self.next.store(usize::MAX / 2, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Whether the program holds the kernels for a device, so that it needs no compiler.
pub(crate) fn built_in(capability: (i32, i32)) -> bool {
    let architecture = architecture(capability);
    let mut files = sources(&architecture);
    built::ARCHITECTURES.contains(&architecture.as_str())
        && files.all(|(name, _)| image(name).is_some())
}

fn image(name: &str) -> Option<&'static [u8]> {
    built::IMAGES.iter().find(|(built, _)| *built == name).map(|(_, bytes)| *bytes)
}

impl Images {
    /// # Errors
    /// The kernels are not built in for `capability` and there is no compiler.
    pub fn new(capability: (i32, i32)) -> Result<Self> {
        let compiler = match Compiler::find() {
            Err(error) if !built_in(capability) => return Err(error),
            found => found.map_err(|error| error.to_string()),
        };
        let architecture = architecture(capability);
        let mut files: Vec<_> = sources(&architecture)
            .map(|&(name, source)| File { name, source, code: OnceLock::new() })
            .collect();
        files.sort_by_key(|file| !SLOW.contains(&file.name));
        Ok(Self { compiler, architecture, files: Arc::new(files), ahead: OnceCell::new() })
    }

    /// What the driver loads for a file.
    ///
    /// # Errors
    /// There is no such file, or it does not compile.
    pub fn get(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        if built::ARCHITECTURES.contains(&self.architecture.as_str())
            && let Some(image) = image(name)
        {
            return Ok(image.into());
        }
        let (file, compiler) = (self.file(name)?, self.compiler()?);
        if file.code.get().is_none()
            && !compiler.has(name, &expand(file.source), &self.architecture)
        {
            self.compile_ahead(compiler);
        }
        match code(file, compiler, &self.architecture) {
            Ok(code) => Ok(code.into()),
            Err(text) => Err(Error::device(text.clone())),
        }
    }

    /// The same compiled anew: a file on disk may be damaged, a driver older than what is built in.
    ///
    /// # Errors
    /// As [`Images::get`].
    pub fn renew(&self, name: &str) -> Result<Vec<u8>> {
        let source = expand(self.file(name)?.source);
        Ok(self.compiler()?.compile(name, &source, &self.architecture)?.cubin)
    }

    fn file(&self, name: &str) -> Result<&File> {
        let file = self.files.iter().find(|file| file.name == name);
        file.ok_or_else(|| Error::device(format!("cuda: no kernel file {name}")))
    }

    fn compiler(&self) -> Result<&Compiler> {
        self.compiler.as_ref().map_err(|text| Error::device(text.clone()))
    }

    fn compile_ahead(&self, compiler: &Compiler) {
        self.ahead.get_or_init(|| {
            let others =
                std::thread::available_parallelism().map_or(1, usize::from).saturating_sub(1);
            let (compiler, architecture) = (compiler.clone(), self.architecture.clone());
            // Whoever wants a file that is under way waits for it.
            Workers::start(others, &self.files, move |file| {
                let _ = code(file, &compiler, &architecture);
            })
        });
    }
}

fn code<'a>(
    file: &'a File,
    compiler: &Compiler,
    architecture: &str,
) -> &'a std::result::Result<Vec<u8>, String> {
    file.code.get_or_init(|| {
        let code = compiler.cached(file.name, &expand(file.source), architecture);
        code.map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn no_thread_works_on_once_nobody_waits_for_it() {
        let list = Arc::new(vec![(); 1000]);
        let done = Arc::new(AtomicUsize::new(0));
        let count = done.clone();
        let workers = Workers::start(3, &list, move |()| {
            std::thread::sleep(Duration::from_millis(5));
            count.fetch_add(1, Ordering::Relaxed);
        });
        while done.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        drop(workers);
        assert_eq!(Arc::strong_count(&list), 1, "a thread still holds the list");
        assert!(done.load(Ordering::Relaxed) < list.len(), "all was done before it stopped");
    }
}
