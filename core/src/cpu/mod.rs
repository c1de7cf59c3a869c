//! The CPU back end: every op's reference, and faster forms where speed asks for them, held to it by conformance.

mod attention;
mod buffer;
mod matmul;
mod matrix;
mod moe;
mod norm;
mod parallel;
mod pointwise;
mod scan;
mod simd;
mod weight;

use crate::backend::{Backend, Ledger, MatrixScales, Memory, Policy, StepKey};
use crate::error::Result;
use crate::ops::*;
use crate::tensor::{DType, Tensor};
use crate::weight::{LocalFuture, StoredWeight, Weight};
pub use buffer::CpuBuffer;
pub(crate) use buffer::{narrow, widen};
pub use parallel::{STRETCH, join_thread_pool, share};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// Which forms of the ops run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forms {
    /// The definitions, for checking others.
    Reference,
    /// Faster forms where there are any.
    Fast,
}

/// The last resort where there is no GPU, and the definition that GPUs are held to. Arithmetic is f32.
pub struct Cpu {
    forms: Forms,
    ahead: bool,
    ledger: Rc<RefCell<Ledger>>,
    marks: RefCell<Vec<Instant>>,
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Cpu {
    /// The back end that users run.
    pub fn new() -> Self {
        Self::with(Forms::Fast)
    }

    /// The back end that every other one is compared with: the plain definitions.
    pub fn reference() -> Self {
        Self::with(Forms::Reference)
    }

    /// The same, with steps queued before the ones before them are read. That gains nothing here, but shows that nothing
    /// changes where it does.
    pub fn ahead() -> Self {
        Self { ahead: true, ..Self::new() }
    }

    fn with(forms: Forms) -> Self {
        Self { forms, ahead: false, ledger: Rc::default(), marks: RefCell::default() }
    }
}

/// The op methods: `name: Type` runs the reference, `name: Type => form` the faster form outside reference mode.
macro_rules! forms {
    ($($name:ident: $op:ty $(=> $fast:path)?),* $(,)?) => {
        $(fn $name(&self, op: &$op) -> Result<()> {
            $(if self.forms == Forms::Fast {
                $fast(op);
                return Ok(());
            })?
            op.reference();
            Ok(())
        })*
    };
}

impl Backend for Cpu {
    const READS_IN_PLACE: bool = true;
    const STATES: &[DType] = &[DType::F32, DType::BF16];

    type Buffer = CpuBuffer;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn policy(&self) -> Policy {
        Policy {
            activations: DType::F32,
            kv: DType::F32,
            state: DType::F32,
            alignment: 4,
            group_experts_from: 2,
            matrix_scales: MatrixScales::Host,
            workspace: 0,
            step_rows: 512,
        }
    }

    fn allocate(&self, bytes: usize, class: Memory, _label: &str) -> Result<CpuBuffer> {
        Ok(CpuBuffer::host(bytes, class, &self.ledger))
    }

    fn same(a: &CpuBuffer, b: &CpuBuffer) -> bool {
        a.same(b)
    }

    async fn load(&self, weight: &StoredWeight) -> Result<Weight<Self>> {
        weight::load(weight, &self.ledger).await
    }

    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()> {
        to.write_bytes(bytes);
        Ok(())
    }

    async fn read(&self, from: &Tensor<Self>) -> Result<Vec<u8>> {
        Ok(from.read_bytes())
    }

    fn read_later(&self, from: &Tensor<Self>) -> Result<LocalFuture<'static, Result<Vec<u8>>>> {
        Ok(Box::pin(std::future::ready(Ok(from.read_bytes()))))
    }

    fn runs_ahead(&self) -> bool {
        self.ahead
    }

    fn ledger(&self) -> Ledger {
        *self.ledger.borrow()
    }

    fn run_step(&self, _key: StepKey, encode: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.marks.borrow_mut().clear();
        parallel::awake(encode)
    }

    fn mark(&self) -> Result<()> {
        self.marks.borrow_mut().push(Instant::now());
        Ok(())
    }

    async fn marks(&self) -> Result<Vec<f64>> {
        let marks = self.marks.borrow();
        let since = |mark: &Instant| mark.duration_since(marks[0]).as_secs_f64() * 1e6;
        Ok(marks.iter().map(since).collect())
    }

    forms! {
        embed: Embed<'_, Self> => matmul::embed,
        rms_norm: RmsNorm<Self> => norm::rms_norm,
        gated_rms_norm: GatedRmsNorm<Self> => norm::gated_rms_norm,
        matmul: Matmul<'_, Self> => matmul::matmul,
        causal_conv1d: CausalConv1d<Self> => scan::causal_conv1d,
        ssm_scan: SsmScan<Self> => scan::ssm_scan,
        rope: Rope<Self> => attention::rope,
        kv_append: KvAppend<Self> => attention::kv_append,
        attention: Attention<Self> => attention::attention,
        activate: Activate<Self> => pointwise::activate,
        moe_route: MoeRoute<Self>,
        moe_group: MoeGroup<Self>,
        moe_matmul: MoeMatmul<'_, Self> => moe::moe_matmul,
        moe_combine: MoeCombine<Self> => moe::moe_combine,
        add: Add<Self> => pointwise::add,
        scale: Scale<Self> => pointwise::scale,
        select_rows: SelectRows<Self> => pointwise::select_rows,
        argmax: Argmax<Self> => pointwise::argmax,
        top_k: TopK<Self>,
        draw: Draw<Self>,
        copy_slot: CopySlot<Self>,
    }
}
