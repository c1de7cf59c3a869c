//! The CPU back end computes what the public implementation computes, however a prompt is fed.

use std::path::{Path, PathBuf};
use whipsnake_core::conformance::golden::{Closeness, Golden, names};
use whipsnake_core::cpu::Cpu;

/// Within 2e-4 of the stored f32 logits.
fn check(make: fn() -> Cpu, fixtures: &[&str]) {
    for name in fixtures {
        let golden = Golden::open(&root().join(name)).unwrap();
        let make = || Ok(make());
        let faults = golden.faults(&make, Closeness::Absolute(2e-4));
        let faults = pollster::block_on(faults).unwrap();
        assert!(faults.is_empty(), "{name}:\n{}", faults.join("\n"));
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// Between them the two have every kind of block; the definitions are too slow for all fixtures.
#[test]
fn the_definitions_match_the_public_implementation() {
    check(Cpu::reference, &["golden/nemotron-latent", "golden/nemotron-dense"]);
}

#[test]
fn the_fast_forms_match_the_public_implementation() {
    let names = names(&root().join("golden")).unwrap();
    assert_eq!(names.len(), 8, "{names:?}");
    let paths: Vec<_> = names.iter().map(|name| format!("golden/{name}")).collect();
    check(Cpu::new, &paths.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn the_small_model_matches_the_public_implementation() {
    check(Cpu::new, &["bard", "bard-nvfp4"]);
}

/// A session on a thread of the pool keeps the other threads awake; several at once get on with each other.
#[test]
fn sessions_on_threads_of_the_pool_match_the_public_implementation() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    pool.scope(|scope| {
        for fixtures in [["bard", "golden/nemotron-latent"], ["golden/nemotron-dense", "bard"]] {
            scope.spawn(move |_| check(Cpu::new, &fixtures));
        }
    });
}
