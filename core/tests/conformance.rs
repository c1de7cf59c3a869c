//! The CPU back end passes its own suite.

use whipsnake_core::conformance::run_suite;
use whipsnake_core::cpu::Cpu;

#[test]
fn the_cpu_back_end_conforms() {
    let report = pollster::block_on(run_suite(&Cpu::new(), ""));
    let faults: Vec<_> =
        report.faults().map(|o| format!("{} {}: {:?}", o.op, o.case, o.fault)).collect();
    assert!(!report.outcomes.is_empty());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
