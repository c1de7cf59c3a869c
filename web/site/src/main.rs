//! Builds the browser site into `target/site`: the wasm module, the JavaScript around it, the page and the models that
//! it serves. `cargo site` runs it.

use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use wasm_bindgen_cli_support::Bindgen;

const TARGET: &str = "wasm32-unknown-unknown";
/// The profile of the workspace that is tuned for size and for the speed of the arithmetic.
const PROFILE: &str = "web";
/// Models beside the page, from the fixtures of the core.
const MODELS: [&str; 2] = ["bard", "bard-nvfp4"];
/// Of a fixture, what its checkpoint is.
const CHECKPOINT: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
];

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let target = root.join("target");
    let site = target.join("site");
    let module = compile(&root, &target)?;
    let wasm = site.join("wasm");
    fresh(&site)?;
    Bindgen::new()
        .input_path(&module)
        .web(true)?
        .typescript(false)
        .remove_name_section(true)
        .remove_producers_section(true)
        .generate(&wasm)
        .context("the JavaScript around the module cannot be written")?;
    for part in ["js", "page"] {
        copy_files(&root.join("web").join(part), &site)?;
    }
    for model in MODELS {
        let to = site.join("models").join(model);
        fs::create_dir_all(&to)?;
        for file in CHECKPOINT {
            let from = root.join("core/fixtures").join(model).join(file);
            if from.exists() {
                fs::copy(&from, to.join(file))?;
            }
        }
    }
    let bytes = fs::metadata(wasm.join("whipsnake_web_bg.wasm"))?.len();
    println!("{}: the module has {bytes} bytes", site.display());
    Ok(())
}

/// Compiles the module with vector instructions, which every browser with WebGPU has.
fn compile(root: &Path, target: &Path) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(["build", "--profile", PROFILE, "--target", TARGET, "-p", "whipsnake-web", "--lib"])
        .arg("--target-dir")
        .arg(target)
        .status()
        .context("cargo cannot be run")?;
    if !status.success() {
        bail!("the module does not compile; `rustup target add {TARGET}` adds the target");
    }
    Ok(target.join(TARGET).join(PROFILE).join("whipsnake_web.wasm"))
}

/// An empty folder in the place of the last site.
fn fresh(site: &Path) -> anyhow::Result<()> {
    if site.exists() {
        fs::remove_dir_all(site).with_context(|| format!("cannot empty {}", site.display()))?;
    }
    fs::create_dir_all(site).with_context(|| format!("cannot make {}", site.display()))
}

/// Copies the files of a folder without subfolders.
fn copy_files(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
