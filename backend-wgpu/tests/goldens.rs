//! Whole models on the portable back end: logits of the public implementation, however a prompt is fed.

use std::path::{Path, PathBuf};
use whipsnake_core::conformance::golden::{Closeness, Golden, names};
use whipsnake_wgpu::{Options, Wgpu, probe};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/fixtures")
}

/// Whole, split, interleaved with others, in a used slot, greedy: within 2e-4 of the stored f32 logits.
fn check(fixtures: &[PathBuf]) {
    if probe::devices().is_empty() && std::env::var_os("WHIPSNAKE_REQUIRE_ADAPTER").is_none() {
        println!("skipped: no adapter; WHIPSNAKE_REQUIRE_ADAPTER makes this a failure");
        return;
    }
    let options = Options { device: std::env::var("WHIPSNAKE_DEVICE").ok(), ..Options::default() };
    for path in fixtures {
        let golden = Golden::open(path).unwrap();
        let make = || Wgpu::open(&options);
        let faults = golden.faults(&make, Closeness::Absolute(2e-4));
        let faults = pollster::block_on(faults).unwrap();
        assert!(faults.is_empty(), "{}:\n{}", path.display(), faults.join("\n"));
    }
}

#[test]
fn every_fixture_matches_the_public_implementation() {
    let names = names(&fixtures().join("golden")).unwrap();
    assert_eq!(names.len(), 8, "{names:?}");
    let paths: Vec<_> = names.iter().map(|name| fixtures().join("golden").join(name)).collect();
    check(&paths);
}

#[test]
fn the_small_model_matches_the_public_implementation() {
    check(&["bard", "bard-nvfp4"].map(|name| fixtures().join(name)));
}
