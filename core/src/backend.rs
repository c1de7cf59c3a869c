//! The seam: what a device must offer to run the model.

use crate::batch::BatchShape;
use crate::error::{Error, Result};
use crate::ops::*;
use crate::step::{FusedOp, Step};
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, LocalFuture, StoredWeight, Weight};
use serde::{Deserialize, Serialize};
use std::future::Future;

/// What an allocation is for; the ledger and `plan` use the same four words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// Weights and small parameters.
    Weights,
    /// Recurrent state: convolution windows and SSM states.
    State,
    /// Keys and values.
    Kv,
    /// Activations and tables, allocated once for a session.
    Scratch,
}

impl Memory {
    /// Every class, in the order that `plan` prints.
    pub const ALL: [Self; 4] = [Self::Weights, Self::State, Self::Kv, Self::Scratch];
}

/// Bytes that a back end holds now, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Weights and small parameters.
    pub weights: u64,
    /// Recurrent state.
    pub state: u64,
    /// Keys and values.
    pub kv: u64,
    /// Activations and tables.
    pub scratch: u64,
}

impl Ledger {
    /// The count of one class.
    pub fn of(&mut self, class: Memory) -> &mut u64 {
        match class {
            Memory::Weights => &mut self.weights,
            Memory::State => &mut self.state,
            Memory::Kv => &mut self.kv,
            Memory::Scratch => &mut self.scratch,
        }
    }

    /// All classes together.
    pub fn total(&self) -> u64 {
        self.weights + self.state + self.kv + self.scratch
    }
}

/// The choices of a back end that shape the model's buffers; `plan` prices the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Activations between ops; the residual stream is always f32.
    pub activations: DType,
    /// Keys and values.
    pub kv: DType,
    /// The state of the recurrence.
    pub state: DType,
    /// Buffers begin and are padded to this many bytes.
    pub alignment: usize,
    /// From this many rows on, experts run on rows sorted by expert (`moe_group`).
    pub group_experts_from: usize,
    /// Whether the scale of a whole matrix takes memory on the device.
    pub matrix_scales: MatrixScales,
    /// Bytes of scratch that an opened back end holds for itself.
    pub workspace: usize,
    /// Rows of a step that suit long prompts: enough to keep the device busy, few enough for its memory.
    pub step_rows: usize,
}

/// Which weights have a buffer with an f32 scale for each of their matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MatrixScales {
    /// None: the scales are numbers on the host.
    Host,
    /// Those of a format that has such scales.
    Quantised,
    /// All.
    All,
}

impl MatrixScales {
    /// Whether weights of `format` have the buffer.
    pub fn kept(self, format: Format) -> bool {
        match self {
            Self::Host => false,
            Self::Quantised => matches!(format, Format::Nvfp4 | Format::Fp8),
            Self::All => true,
        }
    }
}

/// Identifies the steps that encode the same list of ops with the same operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepKey(pub u64);

/// A device and its ops.
///
/// Ops encode; only [`Backend::read`] waits. Operands are already checked by [`Step::run`]; a back end never checks
/// again. Nothing is allocated on the device inside a step.
pub trait Backend: Sized + 'static {
    /// Whether weights stay where the checkpoint's bytes are, so that those may not be given back after loading.
    const READS_IN_PLACE: bool = false;

    /// How the state of the recurrence may be kept.
    const STATES: &[DType] = &[DType::F32];

    /// A device allocation; clones share it.
    type Buffer: Clone;

    /// `cpu`, `wgpu` or `cuda`.
    fn name(&self) -> &'static str;

    /// The choices that shape the model's buffers.
    fn policy(&self) -> Policy;

    /// Allocates `bytes` (contents undefined) for `class`.
    ///
    /// # Errors
    /// The device's memory does not hold it; the text names `label` and by how much it misses.
    fn allocate(&self, bytes: usize, class: Memory, label: &str) -> Result<Self::Buffer>;

    /// Whether two handles are the same allocation.
    fn same(a: &Self::Buffer, b: &Self::Buffer) -> bool;

    /// Puts a stored weight on the device, in the layout that the ops of this back end want.
    ///
    /// # Errors
    /// The bytes cannot be read, the format is not supported, the memory is not there.
    fn load(&self, weight: &StoredWeight) -> impl Future<Output = Result<Weight<Self>>>;

    /// Queues a write of the whole window, row by row.
    ///
    /// # Errors
    /// The driver refuses.
    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()>;

    /// Waits for what was encoded before and returns the window's bytes, rows dense.
    ///
    /// # Errors
    /// The device is lost or the driver refuses.
    fn read(&self, from: &Tensor<Self>) -> impl Future<Output = Result<Vec<u8>>>;

    /// Queues a read of a small window behind what was encoded before, and returns at once: the bytes are those of then,
    /// whatever is encoded later, and whoever awaits them waits for nothing later either.
    ///
    /// # Errors
    /// The driver refuses.
    fn read_later(&self, from: &Tensor<Self>) -> Result<LocalFuture<'static, Result<Vec<u8>>>>;

    /// Whether the device works on while the host goes ahead, so that it pays to queue a step before the one before it
    /// has been read.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Bytes held now.
    fn ledger(&self) -> Ledger;

    /// Bytes that are free on the device, where it tells.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// The shape that a step of this shape is padded to, so that few keys serve all steps. No bound may shrink.
    fn bucket(&self, shape: BatchShape) -> BatchShape {
        shape
    }

    /// Notes the device's clock behind the work encoded so far, for [`Backend::marks`]. A replayed step notes it anew.
    ///
    /// # Errors
    /// The device keeps no time.
    fn mark(&self) -> Result<()> {
        Err(Error::request(format!("{}: this device keeps no time of its ops", self.name())))
    }

    /// Waits for the work encoded so far; the marks of the last step, in microseconds from any start.
    ///
    /// # Errors
    /// As [`Backend::read`].
    fn marks(&self) -> impl Future<Output = Result<Vec<f64>>> {
        std::future::ready(Ok(Vec::new()))
    }

    /// Runs `encode` exactly once, or replays what it recorded the first times for the same `key`.
    ///
    /// # Errors
    /// Those of `encode`, and the driver's.
    fn run_step(&self, key: StepKey, encode: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _ = key;
        encode()
    }

    /// By what relative L2 a product may leave the reference, since operands are rounded to narrower formats than they are
    /// stored in, where the user asked for that; 0 otherwise.
    fn rounding(&self, op: &Matmul<'_, Self>) -> f32 {
        let _ = op;
        0.0
    }

    /// Allocates a dense tensor.
    ///
    /// # Errors
    /// As [`Backend::allocate`].
    fn tensor(
        &self,
        rows: usize,
        cols: usize,
        dtype: DType,
        class: Memory,
        label: &str,
    ) -> Result<Tensor<Self>> {
        let buffer = self.allocate(rows * cols * dtype.bytes(), class, label)?;
        Ok(Tensor::new(buffer, rows, cols, dtype))
    }

    /// Encodes [`Embed`].
    fn embed(&self, op: &Embed<'_, Self>) -> Result<()>;
    /// Encodes [`RmsNorm`].
    fn rms_norm(&self, op: &RmsNorm<Self>) -> Result<()>;
    /// Encodes [`GatedRmsNorm`].
    fn gated_rms_norm(&self, op: &GatedRmsNorm<Self>) -> Result<()>;
    /// Encodes [`Matmul`].
    fn matmul(&self, op: &Matmul<'_, Self>) -> Result<()>;
    /// Encodes [`CausalConv1d`].
    fn causal_conv1d(&self, op: &CausalConv1d<Self>) -> Result<()>;
    /// Encodes [`SsmScan`].
    fn ssm_scan(&self, op: &SsmScan<Self>) -> Result<()>;
    /// Encodes [`Rope`].
    fn rope(&self, op: &Rope<Self>) -> Result<()>;
    /// Encodes [`KvAppend`].
    fn kv_append(&self, op: &KvAppend<Self>) -> Result<()>;
    /// Encodes [`Attention`].
    fn attention(&self, op: &Attention<Self>) -> Result<()>;
    /// Encodes [`Activate`].
    fn activate(&self, op: &Activate<Self>) -> Result<()>;
    /// Encodes [`MoeRoute`].
    fn moe_route(&self, op: &MoeRoute<Self>) -> Result<()>;
    /// Encodes [`MoeGroup`].
    fn moe_group(&self, op: &MoeGroup<Self>) -> Result<()>;
    /// Encodes [`MoeMatmul`].
    fn moe_matmul(&self, op: &MoeMatmul<'_, Self>) -> Result<()>;
    /// Encodes [`MoeCombine`].
    fn moe_combine(&self, op: &MoeCombine<Self>) -> Result<()>;
    /// Encodes [`Add`].
    fn add(&self, op: &Add<Self>) -> Result<()>;
    /// Encodes [`Scale`].
    fn scale(&self, op: &Scale<Self>) -> Result<()>;
    /// Encodes [`SelectRows`].
    fn select_rows(&self, op: &SelectRows<Self>) -> Result<()>;
    /// Encodes [`Argmax`].
    fn argmax(&self, op: &Argmax<Self>) -> Result<()>;
    /// Encodes [`TopK`].
    fn top_k(&self, op: &TopK<Self>) -> Result<()>;
    /// Encodes [`Draw`].
    fn draw(&self, op: &Draw<Self>) -> Result<()>;
    /// Encodes [`CopySlot`].
    fn copy_slot(&self, op: &CopySlot<Self>) -> Result<()>;

    /// Encodes [`NormMatmul`]; a back end overrides it only with a profile and a number.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn norm_matmul(&self, step: &Step<'_, Self>, op: &NormMatmul<'_, Self>) -> Result<()> {
        op.unfused(step)
    }

    /// Encodes [`NormProducts`], as [`Backend::norm_matmul`].
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn norm_products(&self, step: &Step<'_, Self>, op: &NormProducts<'_, Self>) -> Result<()> {
        op.unfused(step)
    }

    /// Encodes [`GatedNormMatmul`], as [`Backend::norm_matmul`].
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn gated_norm_matmul(
        &self,
        step: &Step<'_, Self>,
        op: &GatedNormMatmul<'_, Self>,
    ) -> Result<()> {
        op.unfused(step)
    }

    /// Encodes [`MoeUp`], as [`Backend::norm_matmul`].
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn moe_up(&self, step: &Step<'_, Self>, op: &MoeUp<'_, Self>) -> Result<()> {
        op.unfused(step)
    }

    /// Encodes [`MoeDown`], as [`Backend::norm_matmul`].
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn moe_down(&self, step: &Step<'_, Self>, op: &MoeDown<'_, Self>) -> Result<()> {
        op.unfused(step)
    }
}
