//! The core's trait, handed on to the op hosts.

use crate::Wgpu;
use crate::buffer::{ALIGNMENT, Buffer, WORKSPACE};
use whipsnake_core::backend::{Backend, Ledger, MatrixScales, Memory, Policy, StepKey};
use whipsnake_core::batch::BatchShape;
use whipsnake_core::error::Result;
use whipsnake_core::ops::*;
use whipsnake_core::step::Step;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{LocalFuture, StoredWeight, Weight};

/// From this many rows on a product by expert fills tiles better than it repeats weights.
const GROUP_EXPERTS_FROM: usize = 32;

/// The choices of this back end that shape a model's buffers, the same on every device.
pub const POLICY: Policy = Policy {
    activations: DType::F32,
    kv: DType::F32,
    state: DType::F32,
    // Both fit usize.
    alignment: ALIGNMENT as usize,
    group_experts_from: GROUP_EXPERTS_FROM,
    matrix_scales: MatrixScales::Quantised,
    workspace: WORKSPACE as usize,
    step_rows: 512,
};

/// The op methods: each goes to the function of its name in `ops/`.
macro_rules! hosts {
    ($($name:ident: $op:ty),* $(,)?) => {
        $(fn $name(&self, op: &$op) -> Result<()> {
            crate::ops::$name::encode(self, op)
        })*
    };
}

impl Backend for Wgpu {
    type Buffer = Buffer;

    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn policy(&self) -> Policy {
        POLICY
    }

    fn allocate(&self, bytes: usize, class: Memory, label: &str) -> Result<Buffer> {
        self.buffer(bytes as u64, class, label)
    }

    fn same(a: &Buffer, b: &Buffer) -> bool {
        a.id() == b.id()
    }

    async fn load(&self, weight: &StoredWeight) -> Result<Weight<Self>> {
        self.load_weight(weight).await
    }

    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()> {
        self.upload(to, bytes)
    }

    async fn read(&self, from: &Tensor<Self>) -> Result<Vec<u8>> {
        self.download(from).await
    }

    fn read_later(&self, from: &Tensor<Self>) -> Result<LocalFuture<'static, Result<Vec<u8>>>> {
        self.download_later(from)
    }

    fn runs_ahead(&self) -> bool {
        self.variants.ahead
    }

    fn ledger(&self) -> Ledger {
        self.books.ledger()
    }

    fn bucket(&self, shape: BatchShape) -> BatchShape {
        shape.in_steps()
    }

    fn mark(&self) -> Result<()> {
        self.mark_step_time()
    }

    async fn marks(&self) -> Result<Vec<f64>> {
        self.marks_read().await
    }

    fn run_step(&self, key: StepKey, encode: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.replay(key, encode)
    }

    fn norm_matmul(&self, step: &Step<'_, Self>, op: &NormMatmul<'_, Self>) -> Result<()> {
        crate::ops::norm_matmul::encode(step, op)
    }

    fn norm_products(&self, step: &Step<'_, Self>, op: &NormProducts<'_, Self>) -> Result<()> {
        crate::ops::norm_products::encode(step, op)
    }

    fn moe_up(&self, step: &Step<'_, Self>, op: &MoeUp<'_, Self>) -> Result<()> {
        crate::ops::moe_up::encode(step, op)
    }

    fn moe_down(&self, step: &Step<'_, Self>, op: &MoeDown<'_, Self>) -> Result<()> {
        crate::ops::moe_down::encode(step, op)
    }

    hosts! {
        embed: Embed<'_, Self>, rms_norm: RmsNorm<Self>, gated_rms_norm: GatedRmsNorm<Self>,
        matmul: Matmul<'_, Self>, causal_conv1d: CausalConv1d<Self>, ssm_scan: SsmScan<Self>,
        rope: Rope<Self>, kv_append: KvAppend<Self>, attention: Attention<Self>, activate: Activate<Self>,
        moe_route: MoeRoute<Self>, moe_group: MoeGroup<Self>, moe_matmul: MoeMatmul<'_, Self>,
        moe_combine: MoeCombine<Self>, add: Add<Self>, scale: Scale<Self>, select_rows: SelectRows<Self>,
        argmax: Argmax<Self>, top_k: TopK<Self>, draw: Draw<Self>, copy_slot: CopySlot<Self>,
    }
}
