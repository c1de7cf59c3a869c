//! The portable back end passes core's suite on Chromium's software adapter within WebGPU's default limits: what a
//! browser without a GPU runs.
//!
//! Debian's `chromium` package brings the adapter. Without it the test passes with a note, unless
//! `WHIPSNAKE_REQUIRE_ADAPTER` is set. It is the only test of its program, since it chooses the driver for the process.

use std::path::Path;
use whipsnake_core::conformance::run_suite;
use whipsnake_wgpu::{Options, Wgpu};

const LIBRARY: &str = "/usr/lib/chromium/libvk_swiftshader.so";

#[test]
fn conforms_on_swiftshader_within_webgpu_defaults() {
    if !Path::new(LIBRARY).exists() {
        assert!(
            std::env::var_os("WHIPSNAKE_REQUIRE_ADAPTER").is_none(),
            "no {LIBRARY}: install chromium"
        );
        println!("skipped: no {LIBRARY}; WHIPSNAKE_REQUIRE_ADAPTER makes this a failure");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("swiftshader.json");
    let text = format!(
        r#"{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{LIBRARY}", "api_version": "1.0.5"}}}}"#
    );
    std::fs::write(&manifest, text).unwrap();
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        // SAFETY: this is the only test of the program and no other thread runs yet.
        unsafe { std::env::set_var(variable, &manifest) };
    }
    let gpu = Wgpu::open(&Options::default().with_words("defaults").unwrap()).unwrap();
    println!("{}", gpu.report());
    assert!(gpu.report().name.contains("SwiftShader"), "{}", gpu.report().name);
    let filter = std::env::var("WHIPSNAKE_FILTER").unwrap_or_default();
    let report = pollster::block_on(run_suite(&gpu, &filter));
    let faults: Vec<_> = report
        .faults()
        .map(|o| format!("{} {}: {}", o.op, o.case, o.fault.as_deref().unwrap_or_default()))
        .collect();
    assert!(!report.outcomes.is_empty());
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}
