//! A model on a device with room for some sequences: the back end is erased here, once, and never per op.

mod ahead;
mod device;

use crate::backend::{Ledger, Policy};
use crate::batch::{Batch, BatchLimits};
use crate::error::Result;
use crate::model::ModelSpec;
use crate::profile::OpTime;
use crate::sampling::DrawRow;
use crate::weight::LocalFuture;
pub use device::DeviceSession;

/// What a step should give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want<'a> {
    /// Nothing: a prefill chunk that does not end its prompt.
    Nothing,
    /// Logits of these rows of the batch.
    Logits(&'a [u32]),
    /// The greedy token of these rows of the batch.
    Greedy(&'a [u32]),
}

/// How steps that run ahead choose their tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choose<'a> {
    /// The best of all.
    Best,
    /// One drawn for each row of the batch. The device moves their random numbers on from step to step. Rows that name a
    /// `top_k` and rows that draw from the whole vocabulary do not go together.
    Draw(&'a [DrawRow]),
}

/// What a step gave back.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Nothing was wanted.
    Nothing,
    /// One vector of the vocabulary's size for each wanted row.
    Logits(Vec<Vec<f32>>),
    /// One token for each wanted row.
    Tokens(Vec<u32>),
}

/// How the steps of a session run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mode {
    /// Whether a step that was run before is replayed, where the back end can.
    pub replay: bool,
    /// Whether the back end's fused ops run, or the primitive ops they stand for.
    pub fused: bool,
}

impl Default for Mode {
    fn default() -> Self {
        Self { replay: true, fused: true }
    }
}

/// A loaded model that runs batches.
pub trait Session {
    /// The model.
    fn spec(&self) -> &ModelSpec;

    /// What batches are held to.
    fn limits(&self) -> BatchLimits;

    /// Name of the back end.
    fn backend(&self) -> &'static str;

    /// The choices of the back end that shape the model's buffers.
    fn policy(&self) -> Policy;

    /// Bytes held on the device.
    fn ledger(&self) -> Ledger;

    /// Runs one batch.
    ///
    /// # Errors
    /// The device refuses or is lost, or a wanted row is not in the batch.
    fn forward<'a>(
        &'a mut self,
        batch: &'a Batch,
        want: Want<'a>,
    ) -> LocalFuture<'a, Result<Output>>;

    /// Whether a step may be queued while the tokens that it runs are still being chosen, to any use.
    fn runs_ahead(&self) -> bool;

    /// Queues a step that runs one token of each sequence and chooses the next ones on the device. Tokens of earlier
    /// steps that were not collected are dropped.
    ///
    /// # Errors
    /// A sequence has more than one token, rows to draw by are of two kinds or fewer than the batch has, or the device
    /// refuses.
    fn start(&mut self, batch: &Batch, choose: Choose<'_>) -> Result<()>;

    /// Queues the step behind the last one: the same sequences, and the tokens that it chooses, known or not.
    ///
    /// # Errors
    /// There is no such step, a sequence is at the end of the context, or the device refuses.
    fn follow(&mut self) -> Result<()>;

    /// The tokens that the oldest queued step chose, one for each sequence, once it is done.
    ///
    /// # Errors
    /// No step is queued, or the device is lost.
    fn collect(&mut self) -> LocalFuture<'_, Result<Vec<u32>>>;

    /// Sets how steps run from now on; all ways give the same tokens.
    fn set_mode(&mut self, mode: Mode);

    /// Runs one batch for its greedy tokens, a few times over at the same place, and tells where the time of the last
    /// run went. What its slots held is spoilt.
    ///
    /// # Errors
    /// As [`Session::forward`], or the device keeps no time.
    fn profile<'a>(&'a mut self, batch: &'a Batch) -> LocalFuture<'a, Result<Vec<OpTime>>>;

    /// Copies the state of slot `from`, which holds `tokens` tokens, over slot `to`.
    ///
    /// # Errors
    /// A slot out of range, or both the same.
    fn copy_slot(&mut self, from: usize, to: usize, tokens: usize) -> Result<()>;
}
