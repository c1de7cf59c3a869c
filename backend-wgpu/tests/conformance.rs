//! The portable back end passes core's suite on the adapter at hand.
//!
//! `WHIPSNAKE_DEVICE` selects the adapter as `--device` does, `WHIPSNAKE_FILTER` the ops. Without an adapter the tests
//! pass with a note, unless `WHIPSNAKE_REQUIRE_ADAPTER` is set, as it is where one must exist.

use std::collections::BTreeMap;
use whipsnake_core::conformance::run_suite;
use whipsnake_wgpu::{Options, Wgpu, probe};

fn check(options: &Options) {
    if probe::devices().is_empty() && std::env::var_os("WHIPSNAKE_REQUIRE_ADAPTER").is_none() {
        println!("skipped: no adapter; WHIPSNAKE_REQUIRE_ADAPTER makes this a failure");
        return;
    }
    let options = Options { device: std::env::var("WHIPSNAKE_DEVICE").ok(), ..options.clone() };
    let gpu = Wgpu::open(&options).expect("a device opens");
    println!("{}", gpu.report());
    let filter = std::env::var("WHIPSNAKE_FILTER").unwrap_or_default();
    let report = pollster::block_on(run_suite(&gpu, &filter));
    let mut counts = BTreeMap::new();
    for outcome in &report.outcomes {
        let (passed, failed) = counts.entry(outcome.op).or_insert((0, 0));
        *(if outcome.fault.is_none() { passed } else { failed }) += 1;
    }
    for (op, (passed, failed)) in &counts {
        println!("{op}: {passed} passed, {failed} failed");
    }
    let faults: Vec<_> = report
        .faults()
        .map(|o| format!("{} {}: {}", o.op, o.case, o.fault.as_deref().unwrap_or_default()))
        .collect();
    assert!(!report.outcomes.is_empty());
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn conforms_with_everything_the_adapter_offers() {
    check(&Options::default());
}

#[test]
fn conforms_within_webgpu_defaults() {
    // What a browser on a GPU runs.
    check(&Options::default().with_words("defaults,workgroup").unwrap());
}

#[test]
fn conforms_with_reductions_in_subgroups() {
    check(&Options::default().with_words("subgroup").unwrap());
}

#[test]
fn conforms_with_weights_cut_into_pieces() {
    // Room for the largest expert of the cases, a third of a real model's shapes.
    check(&Options { piece_bytes: Some(96 << 10), ..Options::default() });
}
