//! Every kernel of every variant passes Tint, the WGSL compiler of Chromium, through Dawn for node.
//!
//! `.ci/run` installs the npm package `webgpu` where this looks for it; `tint.mjs` beside this file runs it. Without node
//! or the package the test passes with a note, unless `WHIPSNAKE_REQUIRE_TINT` is set.

use std::path::{Path, PathBuf};
use std::process::Command;
use whipsnake_wgpu::kernels;

fn package() -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    let package = Path::new(&home).join(".cache/whipsnake-tint/node_modules/webgpu");
    package.exists().then_some(package)
}

#[test]
fn every_kernel_passes_tint() {
    let Some(package) = package() else {
        assert!(
            std::env::var_os("WHIPSNAKE_REQUIRE_TINT").is_none(),
            "no webgpu in ~/.cache/whipsnake-tint: run .ci/run"
        );
        println!(
            "skipped: Dawn for node is not installed; WHIPSNAKE_REQUIRE_TINT makes this a failure"
        );
        return;
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut sources = Vec::new();
    for kernel in kernels() {
        match kernel.entry_point() {
            // naga's own extension: browsers do not offer it.
            "coop" => {}
            // naga refuses the directive that Tint wants.
            "subgroup" => {
                sources
                    .push([kernel.to_string(), format!("enable subgroups;\n{}", kernel.source())]);
            }
            _ => sources.push([kernel.to_string(), kernel.source()]),
        }
    }
    let list = dir.join("kernels.json");
    std::fs::write(&list, serde_json::to_vec(&sources).unwrap()).unwrap();
    let manifest = dir.join("swiftshader.json");
    let library = "/usr/lib/chromium/libvk_swiftshader.so";
    let text = format!(
        r#"{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{library}", "api_version": "1.0.5"}}}}"#
    );
    std::fs::write(&manifest, text).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tint.mjs");
    let output = Command::new("node")
        .arg(script)
        .args([&package, &list])
        .env("VK_DRIVER_FILES", &manifest)
        .env("VK_ICD_FILENAMES", &manifest)
        .output()
        .expect("node runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}{errors}", output.status);
    let last = text.lines().last().unwrap_or_default();
    assert_eq!(last, format!("{} kernels pass", sources.len()), "{text}");
}
