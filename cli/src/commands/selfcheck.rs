//! `whipsnake selfcheck`: the conformance cases and laws on a back end, as a table.

use std::collections::BTreeMap;

use whipsnake_core::backend::Backend;
use whipsnake_core::conformance::{Report, run_suite};

use crate::args::SelfcheckArgs;
use crate::output::Output;
use crate::select::{self, BackendTask};

/// Runs the command.
pub fn run(args: &SelfcheckArgs, quiet: bool) -> anyhow::Result<()> {
    let filter = args.filter.as_deref().unwrap_or("");
    let (name, report) = select::on_backend(&args.backend, quiet, Suite { filter })?;
    if report.outcomes.is_empty() {
        anyhow::bail!("no op's name holds {filter:?}");
    }
    let mut output = Output::stdout();
    if args.json {
        output.json(&report)?;
    } else {
        output.text(&table(name, &report, quiet))?;
    }
    let failed = report.faults().count();
    if failed > 0 {
        anyhow::bail!("{failed} of {} cases failed on {name}", report.outcomes.len());
    }
    Ok(())
}

/// Runs the conformance suite.
struct Suite<'a> {
    filter: &'a str,
}

impl BackendTask for Suite<'_> {
    type Output = (&'static str, Report);

    fn run<B: Backend>(self, backend: B) -> anyhow::Result<Self::Output> {
        Ok((backend.name(), pollster::block_on(run_suite(&backend, self.filter))))
    }
}

/// One line an op, then every fault.
fn table(backend: &str, report: &Report, quiet: bool) -> String {
    let mut ops: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for outcome in &report.outcomes {
        let (passed, failed) = ops.entry(outcome.op).or_default();
        if outcome.fault.is_none() { *passed += 1 } else { *failed += 1 }
    }
    let mut text = String::new();
    if !quiet {
        text.push_str(&format!("{:<18} {:>7} {:>7}   on {backend}\n", "op", "passed", "failed"));
        for (op, (passed, failed)) in ops {
            text.push_str(&format!("{op:<18} {passed:>7} {failed:>7}\n"));
        }
    }
    for outcome in report.faults() {
        text.push_str(&format!(
            "{} {}: {}\n",
            outcome.op,
            outcome.case,
            outcome.fault.as_deref().unwrap_or("")
        ));
    }
    let failed = report.faults().count();
    text.push_str(&format!("{} passed, {failed} failed\n", report.outcomes.len() - failed));
    text
}
