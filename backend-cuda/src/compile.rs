//! Compiles kernels with NVRTC and keeps the result on disk.

use crate::library;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CString, c_char};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use whipsnake_core::error::{Error, Result};

/// NVRTC, loaded.
#[derive(Clone, Debug)]
pub struct Compiler {
    path: PathBuf,
    version: (i32, i32),
}

/// A compiled kernel file.
pub struct Compiled {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// The compiler's remarks: registers, spills and shared memory of every kernel.
    pub log: String,
}

impl Compiler {
    /// Finds and loads NVRTC.
    ///
    /// # Errors
    /// It is not on this machine; the text says where it was looked for.
    pub fn find() -> Result<Self> {
        let path = library::load_nvrtc()?;
        let mut version = (0, 0);
        // SAFETY: the library is loaded and both pointers live through the call.
        unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) };
        Ok(Self { path, version })
    }

    /// Where NVRTC lies.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Its version, `(13, 0)` for CUDA 13.0.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles one file for an architecture such as `sm_90a`.
    ///
    /// # Errors
    /// The compiler's log.
    pub fn compile(&self, name: &str, source: &str, architecture: &str) -> Result<Compiled> {
        let refuse =
            |text: String| Error::device(format!("kernels/{name}.cu for {architecture}: {text}"));
        let text = CString::new(source).map_err(|error| refuse(error.to_string()))?;
        let file = CString::new(format!("{name}.cu")).map_err(|error| refuse(error.to_string()))?;
        let program = result::create_program(&text, Some(&file))
            .map_err(|error| refuse(format!("{error:?}")))?;
        let options = [
            format!("--gpu-architecture={architecture}"),
            "--std=c++17".into(),
            "--ptxas-options=-v".into(),
        ];
        // SAFETY: the program was created above and is destroyed below, once.
        let compiled = unsafe { result::compile_program(program, &options) };
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(program) }
            .map(|log| text_of(&log))
            .unwrap_or_default();
        let cubin = match compiled {
            Ok(()) => cubin(program).map_err(|error| refuse(format!("{error:?}"))),
            Err(error) => Err(refuse(format!("{error:?}: {log}"))),
        };
        // SAFETY: the program is not used again.
        unsafe { result::destroy_program(program) }
            .map_err(|error| refuse(format!("{error:?}")))?;
        Ok(Compiled { cubin: cubin?, log })
    }

    /// The machine code, from the cache on disk where it is there.
    ///
    /// # Errors
    /// As [`Compiler::compile`]. A cache that cannot be read or written only costs time.
    pub fn cached(&self, name: &str, source: &str, architecture: &str) -> Result<Vec<u8>> {
        let path = self.cache_path(name, source, architecture);
        if let Some(cubin) = path.as_ref().and_then(|path| std::fs::read(path).ok()) {
            return Ok(cubin);
        }
        let started = std::time::Instant::now();
        let cubin = self.compile(name, source, architecture)?.cubin;
        tracing::debug!(
            name,
            architecture,
            milliseconds = started.elapsed().as_millis(),
            "compiled"
        );
        if let Some(Err(error)) = path.map(|path| store(&path, &cubin)) {
            tracing::debug!(%error, "the kernel cache cannot be written");
        }
        Ok(cubin)
    }

    /// Whether the cache on disk holds the machine code.
    pub fn has(&self, name: &str, source: &str, architecture: &str) -> bool {
        self.cache_path(name, source, architecture).is_some_and(|path| path.is_file())
    }

    fn cache_path(&self, name: &str, source: &str, architecture: &str) -> Option<PathBuf> {
        let mut hasher = DefaultHasher::new();
        (source, architecture, self.version).hash(&mut hasher);
        let (major, minor) = self.version;
        let file = format!("{name}-{architecture}-{major}.{minor}-{:016x}.cubin", hasher.finish());
        Some(cache_directory()?.join(file))
    }
}

fn cache_directory() -> Option<PathBuf> {
    let given = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    given("WHIPSNAKE_CACHE")
        .or_else(|| given("XDG_CACHE_HOME").map(|root| root.join("whipsnake")))
        .or_else(|| given("HOME").map(|root| root.join(".cache/whipsnake")))
        .map(|root| root.join("kernels"))
}

/// Writes beside the target and renames, so that a reader never sees half a file.
fn store(path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    std::fs::write(&partial, bytes)?;
    std::fs::rename(&partial, path)
}

fn text_of(log: &[c_char]) -> String {
    // A C character is a byte whatever its sign.
    let bytes: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn cubin(program: sys::nvrtcProgram) -> std::result::Result<Vec<u8>, result::NvrtcError> {
    let mut bytes = 0;
    // SAFETY: the program has been compiled to machine code; the size lives through the call.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut bytes) }.result()?;
    let mut cubin = vec![0u8; bytes];
    // SAFETY: the vector has as many bytes as the call writes.
    unsafe { sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()) }.result()?;
    Ok(cubin)
}
