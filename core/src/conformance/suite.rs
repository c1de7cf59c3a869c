//! Runs every op's cases and the laws on a back end, and reports a table.

use super::rig::Rig;
use super::{Case, laws};
use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::ops;
use crate::tensor::DType;
use serde::Serialize;

/// How one case ended.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Op or law.
    pub op: &'static str,
    /// What the case shows.
    pub case: String,
    /// What went wrong; `None` where it passed.
    pub fault: Option<String>,
}

/// Every outcome of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// In the order of the run.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// Those that failed.
    pub fn faults(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|o| o.fault.is_some())
    }
}

/// Runs the cases of every op whose name contains `filter`.
pub async fn run_suite<B: Backend>(backend: &B, filter: &str) -> Report {
    watch_suite(backend, filter, &|_| {}).await
}

/// As [`run_suite`], telling every outcome as it is known.
pub async fn watch_suite<B: Backend>(
    backend: &B,
    filter: &str,
    watcher: &dyn Fn(&Outcome),
) -> Report {
    let mut suite = Suite { backend, filter, watcher, report: Report::default() };
    ops::run_cases(&mut suite).await;
    // The browser's module stays small without.
    #[cfg(not(target_arch = "wasm32"))]
    suite.cases("layers", super::layers::cases()).await;
    suite.laws().await;
    suite.report
}

/// A run in progress; ops hand it their cases.
pub struct Suite<'a, B: Backend> {
    backend: &'a B,
    filter: &'a str,
    watcher: &'a dyn Fn(&Outcome),
    report: Report,
}

impl<B: Backend> Suite<'_, B> {
    /// Runs the cases of one op, with f32 activations and with those the back end prefers.
    pub async fn cases<C: Case>(&mut self, op: &'static str, cases: Vec<C>) {
        if !op.contains(self.filter) {
            return;
        }
        for case in &cases {
            for dtype in self.dtypes() {
                let name = format!("{} {dtype}", case.name());
                let fault = match compare(self.backend, case, &format!("{op} {name}"), dtype).await
                {
                    Ok(fault) => fault,
                    Err(error) => Some(error.to_string()),
                };
                self.push(Outcome { op, case: name, fault });
            }
        }
    }

    fn push(&mut self, outcome: Outcome) {
        (self.watcher)(&outcome);
        self.report.outcomes.push(outcome);
    }

    /// Runs the laws, as cases of an op named `law`.
    async fn laws(&mut self) {
        if !"law".contains(self.filter) {
            return;
        }
        for law in laws::laws() {
            for dtype in self.dtypes() {
                let fault = law.fault(self.backend, dtype).await;
                let fault = fault.unwrap_or_else(|error| Some(error.to_string()));
                let case = format!("{} {dtype}", law.name());
                self.push(Outcome { op: "law", case, fault });
            }
        }
    }

    /// f32 and what the back end prefers for activations.
    fn dtypes(&self) -> Vec<DType> {
        let preferred = self.backend.policy().activations;
        if preferred == DType::F32 { vec![DType::F32] } else { vec![DType::F32, preferred] }
    }
}

/// Runs a case on the reference and on `backend`; the first difference, if any.
async fn compare<B: Backend, C: Case>(
    backend: &B,
    case: &C,
    seed: &str,
    dtype: DType,
) -> Result<Option<String>> {
    let reference = Cpu::reference();
    let want = Rig::new(&reference, seed, dtype);
    case.run(&want)?;
    let got = Rig::new(backend, seed, dtype);
    case.run(&got)?;
    for (got, want) in got.watched.take().iter().zip(&want.watched.take()) {
        let bytes = backend.read(&got.whole).await?;
        let reference = reference.read(&want.whole).await?;
        if let Some(fault) = got.fault(&bytes, &reference) {
            return Ok(Some(fault));
        }
    }
    Ok(None)
}
