//! Finds NVIDIA's libraries by full path, so that neither a linker path nor an environment is needed.

use std::path::{Path, PathBuf};
use whipsnake_core::error::{Error, Result};

/// Names that a full path or directory of NVRTC may be given by.
const NVRTC_VARIABLE: &str = "WHIPSNAKE_NVRTC";

/// Directories that may hold the toolkit's libraries, most specific first.
fn directories() -> Vec<PathBuf> {
    let mut list = Vec::new();
    for variable in [NVRTC_VARIABLE, "CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = std::env::var_os(variable).map(PathBuf::from) {
            list.extend([root.join("lib64"), root.join("lib"), root.clone()]);
            list.extend(root.parent().filter(|_| root.is_file()).map(Path::to_path_buf));
        }
    }
    for root in ["/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-12", "/opt/cuda"] {
        list.extend([Path::new(root).join("lib64"), Path::new(root).join("lib")]);
    }
    list.extend(
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"]
            .map(PathBuf::from),
    );
    list.extend(wheel_directories());
    list.retain(|path| path.is_dir());
    list
}

/// `nvidia/*/lib` of the Python environments that are active or usual.
fn wheel_directories() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(|variable| {
            std::env::var_os(variable).map(|root| PathBuf::from(root).join("lib"))
        })
        .collect();
    if let Some(home) = std::env::var_os("HOME").map(PathBuf::from) {
        roots.extend([home.join(".local/lib"), home.join(".cache/whipsnake-cuda/lib")]);
    }
    roots.extend(["/usr/local/lib", "/usr/lib"].map(PathBuf::from));
    let mut list = Vec::new();
    for python in roots.iter().flat_map(|root| entries(root)) {
        for packages in ["site-packages", "dist-packages"] {
            list.extend(
                entries(&python.join(packages).join("nvidia")).into_iter().map(|p| p.join("lib")),
            );
        }
    }
    list
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let mut list: Vec<_> =
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    list.sort();
    list
}

/// Files `stem.so*` in `directory`, newest version first.
fn versions(directory: &Path, stem: &str) -> Vec<PathBuf> {
    let prefix = format!("{stem}.so");
    let named = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(&prefix))
    };
    entries(directory).into_iter().filter(named).rev().collect()
}

/// Loads NVRTC and keeps it loaded; the later lookup by bare name is then satisfied by its SONAME.
///
/// # Errors
/// It is nowhere; the text says where it was looked for.
pub(crate) fn load_nvrtc() -> Result<PathBuf> {
    for directory in directories() {
        for path in versions(&directory, "libnvrtc") {
            // NVRTC opens its built-ins by bare name at the first compilation.
            let built_ins = versions(&directory, "libnvrtc-builtins");
            if built_ins.iter().any(|path| keep(path)) && keep(&path) {
                return Ok(path);
            }
        }
    }
    // SAFETY: only asks whether the library can be opened.
    if unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Ok(PathBuf::from("libnvrtc (found by the loader)"));
    }
    Err(Error::device(format!(
        "libnvrtc is in none of the CUDA toolkit, $CUDA_HOME, Python's nvidia wheels and the system's libraries; \
         install the toolkit or nvidia-cuda-nvrtc, or set {NVRTC_VARIABLE} to its directory"
    )))
}

/// Loads cuBLASLt and keeps it loaded, as [`load_nvrtc`] does; `None` where it is nowhere.
pub(crate) fn load_cublaslt() -> Option<PathBuf> {
    let files = directories().into_iter().flat_map(|directory| versions(&directory, "libcublasLt"));
    if let Some(path) = files.into_iter().find(|path| keep(path)) {
        return Some(path);
    }
    // SAFETY: only asks whether the library can be opened.
    let found = unsafe { cudarc::cublaslt::sys::is_culib_present() };
    found.then(|| PathBuf::from("libcublasLt (found by the loader)"))
}

/// Loads a library for the rest of the process.
fn keep(path: &Path) -> bool {
    // SAFETY: NVIDIA's libraries run no code on loading that needs anything of us.
    unsafe { libloading::Library::new(path) }.map(std::mem::forget).is_ok()
}
