//! Whole models on the portable back end: logits of the public implementation, however a prompt is fed.

use std::path::{Path, PathBuf};
use whipsnake_core::conformance::golden::{Closeness, Golden, names};
use whipsnake_wgpu::{Options, Wgpu, probe};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/fixtures")
}

/// Whole, split, interleaved with others, in a used slot, greedy: within 2e-4 of the stored f32 logits.
fn check(fixture: &str) {
    if probe::devices().is_empty() && std::env::var_os("WHIPSNAKE_REQUIRE_ADAPTER").is_none() {
        println!("skipped: no adapter; WHIPSNAKE_REQUIRE_ADAPTER makes this a failure");
        return;
    }
    let options = Options { device: std::env::var("WHIPSNAKE_DEVICE").ok(), ..Options::default() };
    let golden = Golden::open(&fixtures().join(fixture)).unwrap();
    let make = || Wgpu::open(&options);
    let faults = pollster::block_on(golden.faults(&make, Closeness::Absolute(2e-4))).unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A test a fixture, so that they run side by side, and their list.
macro_rules! matches_the_public_implementation {
    ($($name:ident $fixture:literal),* $(,)?) => {
        mod matches_the_public_implementation {
            $(#[test]
            fn $name() {
                super::check($fixture);
            })*
        }

        const FIXTURES: &[&str] = &[$($fixture),*];
    };
}

matches_the_public_implementation!(
    bf16 "golden/nemotron-bf16",
    dense "golden/nemotron-dense",
    fp8 "golden/nemotron-fp8",
    latent "golden/nemotron-latent",
    mixed "golden/nemotron-mixed",
    moe "golden/nemotron-moe",
    nvfp4 "golden/nemotron-nvfp4",
    sharded "golden/nemotron-sharded",
    small_model "bard",
    small_model_nvfp4 "bard-nvfp4",
);

#[test]
fn no_fixture_is_left_out() {
    let names = names(&fixtures().join("golden")).unwrap();
    let mut want: Vec<_> = names.iter().map(|name| format!("golden/{name}")).collect();
    want.extend(["bard", "bard-nvfp4"].map(String::from));
    assert_eq!(FIXTURES, want);
}
