//! The cases and laws that hold every back end to the definitions, through the same entry point that the model uses.
//!
//! A case builds its operands on a [`Rig`] and runs its op. The harness runs it twice, on the reference and on the back
//! end under test, and compares every output: prefilled with NaN, canaries around it, inputs from the same seeds.

mod broken;
mod fill;
#[cfg(not(target_arch = "wasm32"))]
pub mod golden;
mod laws;
#[cfg(not(target_arch = "wasm32"))]
mod layers;
mod machine;
mod ragged;
mod rig;
mod suite;
mod watched;

pub use broken::Broken;
pub use fill::{Fill, Stream};
pub use ragged::Ragged;
pub use rig::Rig;
pub use suite::{Outcome, Report, Suite, run_suite, watch_suite};
pub use watched::Tolerance;

use crate::backend::Backend;
use crate::error::Result;

/// One conformance case of an op, or one law.
pub trait Case {
    /// What it shows, for the table: shapes and what is special.
    fn name(&self) -> String;

    /// Builds operands on the rig and runs the op through its step.
    ///
    /// # Errors
    /// Those of the back end; a case never refuses by itself.
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()>;
}
