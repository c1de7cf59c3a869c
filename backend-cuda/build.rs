//! Compiles the kernels into the program where `nvcc` is there while it is built; elsewhere NVRTC compiles them at first
//! run.
//!
//! `NVCC` names the compiler, else it is looked for in the usual places. `WHIPSNAKE_CUDA_ARCHITECTURES` names what to
//! compile for, such as `sm_90a,sm_120a` (empty for nothing); else the devices of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Kernel files whose name ends so use what only one architecture has.
const OWN_FILES: [(&str, &str); 2] = [("_sm90", "sm_90a"), ("_sm120", "sm_120a")];

fn main() {
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "WHIPSNAKE_CUDA_ARCHITECTURES"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=../kernels");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names a folder"));
    let (mut architectures, mut images) = (Vec::new(), Vec::new());
    if let Some(nvcc) = nvcc() {
        architectures = wanted();
        images = compile_all(&nvcc, &architectures, &out);
    }
    let list: String = images
        .iter()
        .map(|(name, path)| format!("    ({name:?}, include_bytes!({path:?})),\n"))
        .collect();
    let text = format!(
        "/// What the images below hold.\npub const ARCHITECTURES: &[&str] = &{architectures:?};\n\n\
         /// Kernel files, compiled: name and fat binary.\npub const IMAGES: &[(&str, &[u8])] = &[\n{list}];\n"
    );
    std::fs::write(out.join("built.rs"), text).expect("cargo's folder can be written");
}

fn nvcc() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("NVCC") {
        return Some(path.into());
    }
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let homes = homes.map(PathBuf::from).chain(["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> =
        std::env::split_paths(&path).chain(homes.map(|home| home.join("bin"))).collect();
    folders.iter().map(|folder| folder.join("nvcc")).find(|path| path.is_file())
}

/// Architectures to compile for, as compilers name them.
fn wanted() -> Vec<String> {
    if let Ok(list) = std::env::var("WHIPSNAKE_CUDA_ARCHITECTURES") {
        return list.split(',').map(str::trim).filter(|s| !s.is_empty()).map(Into::into).collect();
    }
    let query = ["--query-gpu=compute_cap", "--format=csv,noheader"];
    let Ok(done) = Command::new("nvidia-smi").args(query).output() else { return Vec::new() };
    let mut list: Vec<_> = String::from_utf8_lossy(&done.stdout)
        .lines()
        .filter_map(|line| line.trim().split_once('.'))
        .map(|(major, minor)| (major.parse().unwrap_or(0), minor.parse().unwrap_or(0)))
        .filter(|capability| *capability >= (8, 0))
        .map(|(major, minor): (u32, u32)| {
            format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
        })
        .collect();
    list.sort();
    list.dedup();
    list
}

/// Compiles every kernel file, on every processor; one that fails is left to NVRTC.
fn compile_all(nvcc: &Path, architectures: &[String], out: &Path) -> Vec<(String, PathBuf)> {
    let files = std::fs::read_dir("../kernels").expect("the kernels lie beside this package");
    let mut files: Vec<_> = files.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "cu"));
    files.sort();
    let (queue, done) = (Mutex::new(files.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(file) = queue.lock().expect("no thread panics").next() else { break };
                    if let Some(image) = compile(nvcc, &file, architectures, out) {
                        done.lock().expect("no thread panics").push(image);
                    }
                }
            });
        }
    });
    let mut images = done.into_inner().expect("no thread panics");
    images.sort();
    images
}

fn compile(nvcc: &Path, file: &Path, wanted: &[String], out: &Path) -> Option<(String, PathBuf)> {
    let name = file.file_stem()?.to_string_lossy().into_owned();
    let image = out.join(format!("{name}.fatbin"));
    let own = OWN_FILES.iter().find(|(end, _)| name.ends_with(end)).map(|(_, only)| *only);
    let mut command = Command::new(nvcc);
    command.args(["-fatbin", "-std=c++17", "-o"]).arg(&image).arg(file);
    let fitting: Vec<_> = wanted.iter().filter(|sm| own.is_none_or(|only| *sm == only)).collect();
    for sm in &fitting {
        command.arg(format!("-gencode=arch={},code={sm}", sm.replacen("sm", "compute", 1)));
    }
    if fitting.is_empty() {
        return None;
    }
    match command.output() {
        Ok(done) if done.status.success() => Some((name, image)),
        Ok(done) => warn(&name, &String::from_utf8_lossy(&done.stderr)),
        Err(error) => warn(&name, &error.to_string()),
    }
}

fn warn<T>(name: &str, why: &str) -> Option<T> {
    let why = why.lines().next().unwrap_or_default();
    println!("cargo::warning=kernels/{name}.cu is left to the first run: nvcc: {why}");
    None
}
