//! Every case and law on the device, where there is one: f32 mode and bf16 mode, tuned kernels and plain ones.

use std::collections::BTreeMap;
use whipsnake_core::conformance::{Outcome, run_suite};
use whipsnake_cuda::{Cuda, Options, devices};

fn table(mode: &str, outcomes: &[Outcome]) {
    let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for outcome in outcomes {
        counts.entry(outcome.op).or_default()[usize::from(outcome.fault.is_some())] += 1;
    }
    for (op, [passed, failed]) in counts {
        println!("{mode:10} {op:16} {passed:4} passed {failed:4} failed");
    }
}

fn check(mode: &str, options: Options) {
    if let Some(reason) = &devices()[0].refused {
        println!("skipped: {reason}");
        return;
    }
    let filter = std::env::var("WHIPSNAKE_CONFORMANCE").unwrap_or_default();
    let cuda = Cuda::with_options(0, options).unwrap_or_else(|error| panic!("{error}"));
    let report = pollster::block_on(run_suite(&cuda, &filter));
    table(mode, &report.outcomes);
    let faults: Vec<_> = report.faults().collect();
    for Outcome { op, case, fault } in &faults {
        println!("{mode} {op} {case}: {}", fault.as_deref().unwrap_or_default());
    }
    assert!(faults.is_empty(), "{} cases fail in {mode} mode", faults.len());
}

#[test]
fn conforms_in_f32() {
    check("f32", Options::F32);
}

#[test]
fn conforms_in_bf16() {
    check("bf16", Options::default());
}

#[test]
fn plain_kernels_conform() {
    check("plain", Options { plain: true, ..Options::default() });
}
