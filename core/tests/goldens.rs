//! The CPU back end computes what the public implementation computes, however a prompt is fed.

use std::path::Path;
use whipsnake_core::conformance::golden::{Closeness, Golden, names};
use whipsnake_core::cpu::Cpu;

/// Every fixture, within 2e-4 of the stored f32 logits.
fn check(make: fn() -> Cpu) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden");
    let names = names(&root).unwrap();
    assert_eq!(names.len(), 8, "{names:?}");
    for name in names {
        let golden = Golden::open(&root.join(&name)).unwrap();
        let faults =
            pollster::block_on(golden.faults(&|| Ok(make()), Closeness::Absolute(2e-4))).unwrap();
        assert!(faults.is_empty(), "{name}:\n{}", faults.join("\n"));
    }
}

#[test]
fn the_definitions_match_the_public_implementation() {
    check(Cpu::reference);
}

#[test]
fn the_fast_forms_match_the_public_implementation() {
    check(Cpu::new);
}
