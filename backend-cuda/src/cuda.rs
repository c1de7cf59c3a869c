//! The back end: one device, one stream, its kernels, its memory.

use crate::cublaslt::CublasLt;
use crate::driver::{Block, Driver, Shape, Start, checked};
use crate::images::Images;
use crate::kernels::{Args, Kernels};
use crate::later::Later;
use crate::memory::{ALIGNMENT, CudaBuffer, Pool};
use crate::program::Program;
use crate::staging::Staging;
use crate::step::Recorded;
use crate::switches::on;
use crate::view::pointer;
use cudarc::driver::{CudaEvent, sys};
use std::cell::{Cell, OnceCell, Ref, RefCell, RefMut};
use std::collections::HashMap;
use std::rc::Rc;
use whipsnake_core::backend::{Backend, Ledger, MatrixScales, Memory, Policy, StepKey};
use whipsnake_core::batch::BatchShape;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::*;
use whipsnake_core::step::Step;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{LocalFuture, StoredWeight, Weight};

/// Choices of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Activations between ops: bf16, or f32 where every digit counts.
    pub activations: DType,
    /// Keys and values: bf16, f32, f16 or f8e4m3.
    pub kv: DType,
    /// The state of the recurrence: f32, or bf16, which halves the traffic of decoding many sequences.
    pub state: DType,
    /// Run the plain form of every op, which the tuned ones are held to.
    pub plain: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { activations: DType::BF16, kv: DType::BF16, state: DType::F32, plain: false }
    }
}

impl Options {
    /// f32 everywhere.
    pub const F32: Self =
        Self { activations: DType::F32, kv: DType::F32, state: DType::F32, plain: false };

    /// The choices that shape a model's buffers.
    pub const fn policy(&self) -> Policy {
        Policy {
            activations: self.activations,
            kv: self.kv,
            state: self.state,
            alignment: ALIGNMENT,
            group_experts_from: 8,
            matrix_scales: MatrixScales::All,
            workspace: 0,
            step_rows: 4096,
        }
    }
}

/// A CUDA device as a back end.
///
/// Dropped in the order of its fields: graphs before the memory and modules whose addresses they hold.
pub struct Cuda {
    steps: RefCell<HashMap<StepKey, Recorded>>,
    /// Of the last step.
    marks: RefCell<Vec<Rc<CudaEvent>>>,
    capturing: Cell<bool>,
    /// What the step being encoded has gathered.
    pub(crate) program: RefCell<Program>,
    /// Partial results of ops that run in two stages. Grown only outside captures, and what graphs point at stays.
    workspaces: RefCell<Vec<(usize, CudaBuffer)>>,
    staging: RefCell<Staging>,
    later: Later,
    kernels: Kernels,
    pool: Pool,
    /// Opened at the first product that wants it.
    cublaslt: OnceCell<Option<CublasLt>>,
    multiprocessors: usize,
    /// Shared memory that a block may ask for.
    most_shared: u32,
    capability: (i32, i32),
    options: Options,
    driver: Rc<Driver>,
}

impl Cuda {
    /// Opens device `ordinal` with the default options.
    ///
    /// # Errors
    /// There is no driver, no such device, no compiler for the kernels, or too little memory.
    pub fn new(ordinal: usize) -> Result<Self> {
        Self::with_options(ordinal, Options::default())
    }

    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// As [`Cuda::new`]; or the options ask for a dtype that the kernels do not take.
    pub fn with_options(ordinal: usize, options: Options) -> Result<Self> {
        if !matches!(options.activations, DType::F32 | DType::BF16) {
            return Err(Error::device(format!(
                "cuda: activations in {}, want f32 or bf16",
                options.activations
            )));
        }
        if !Self::STATES.contains(&options.state) {
            return Err(Error::device(format!(
                "cuda: state in {}, want f32 or bf16",
                options.state
            )));
        }
        if options.kv == DType::U32 {
            return Err(Error::device("cuda: kv in u32, want bf16, f32, f16 or f8e4m3"));
        }
        let driver = Rc::new(Driver::open(ordinal)?);
        tracing::debug!(ordinal, "the device is open");
        let context = driver.context();
        let capability = checked("reading the compute capability", context.compute_capability())?;
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = checked("reading an attribute", context.attribute(attribute))?;
        let attribute =
            sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let most_shared = checked("reading an attribute", context.attribute(attribute))?;
        Ok(Self {
            steps: RefCell::default(),
            marks: RefCell::default(),
            capturing: Cell::new(false),
            program: RefCell::default(),
            workspaces: RefCell::default(),
            staging: RefCell::new(Staging::new(driver.clone())?),
            later: Later::new(driver.clone()),
            kernels: Kernels::new(driver.clone(), Images::new(capability)?, capability),
            pool: Pool::new(driver.clone()),
            cublaslt: OnceCell::new(),
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(1),
            most_shared: most_shared.unsigned_abs(),
            capability,
            options,
            driver,
        })
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn staging(&self) -> RefMut<'_, Staging> {
        self.staging.borrow_mut()
    }

    pub(crate) fn steps(&self) -> Ref<'_, HashMap<StepKey, Recorded>> {
        self.steps.borrow()
    }

    pub(crate) fn steps_mut(&self) -> RefMut<'_, HashMap<StepKey, Recorded>> {
        self.steps.borrow_mut()
    }

    pub(crate) fn marks_mut(&self) -> RefMut<'_, Vec<Rc<CudaEvent>>> {
        self.marks.borrow_mut()
    }

    pub(crate) fn capturing(&self) -> bool {
        self.capturing.get()
    }

    pub(crate) fn set_capturing(&self, on: bool) {
        self.capturing.set(on);
    }

    pub(crate) fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    pub(crate) fn most_shared(&self) -> u32 {
        self.most_shared
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Whether the device has the instructions of `sm_90a`, and they may run: without them it takes the forms of other cards.
    pub(crate) fn hopper(&self) -> bool {
        self.capability == (9, 0) && on("sm90")
    }

    /// Whether the tensor cores take E4M3.
    pub(crate) fn fp8(&self) -> bool {
        self.capability >= (8, 9)
    }

    /// Whether warps have products of block-scaled E2M1.
    pub(crate) fn fp4(&self) -> bool {
        self.capability == (12, 0)
    }

    /// The vendor's dense products, where they can be had. A capture only uses what an eager run has opened.
    pub(crate) fn cublaslt(&self) -> Option<&CublasLt> {
        if self.capturing() && self.cublaslt.get().is_none() {
            return None;
        }
        self.cublaslt.get_or_init(|| CublasLt::open(self)).as_ref()
    }

    /// Whether the tuned kernels may run.
    pub(crate) fn tuned(&self) -> bool {
        !self.options.plain
    }

    /// Queues a kernel.
    pub(crate) fn launch(
        &self,
        file: &'static str,
        name: &str,
        shape: Shape,
        args: &mut Args,
    ) -> Result<()> {
        self.flush()?;
        self.kernels.launch(file, name, shape, args, Start::Ordered)
    }

    /// Queues a kernel that waits for the ones before it itself (`await_previous` of `kernels/common.cuh`): it may start
    /// while they still run.
    pub(crate) fn launch_early(
        &self,
        file: &'static str,
        name: &str,
        shape: Shape,
        args: &mut Args,
    ) -> Result<()> {
        self.flush()?;
        let start = if on("overlap") { Start::Early } else { Start::Ordered };
        self.kernels.launch(file, name, shape, args, start)
    }

    /// Blocks of `threads` for `items`, as many as fill the device a few times: kernels walk on from there.
    pub(crate) fn blocks(&self, items: u64, threads: u64) -> u32 {
        let wanted = items.div_ceil(threads).min(self.multiprocessors as u64 * 32);
        u32::try_from(wanted).unwrap_or(u32::MAX)
    }

    /// At least `bytes` of scratch, the same memory for every op: the stream orders their uses.
    pub(crate) fn workspace(&self, bytes: usize) -> Result<u64> {
        let mut list = self.workspaces.borrow_mut();
        if let Some((_, buffer)) = list.last().filter(|(held, _)| *held >= bytes) {
            return Ok(buffer.pointer());
        }
        self.outside_capture("a larger workspace")?;
        let size = bytes.next_power_of_two().max(16 << 20);
        list.push((size, self.pool.allocate(size, Memory::Scratch, "workspace")?));
        Ok(list.last().map_or(0, |(_, buffer)| buffer.pointer()))
    }

    /// The same memory for operands of these sizes, each at a multiple of 256 bytes.
    pub(crate) fn workspaces<const N: usize>(&self, sizes: [usize; N]) -> Result<[u64; N]> {
        let mut end = 0;
        let starts = sizes.map(|bytes| {
            let start = end;
            end += bytes.next_multiple_of(ALIGNMENT);
            start as u64
        });
        let base = self.workspace(end)?;
        Ok(starts.map(|start| base + start))
    }
}

/// A window as the copies see it.
fn block(tensor: &Tensor<Cuda>) -> Block {
    let bytes = tensor.dtype().bytes();
    let (width, rows) = (tensor.cols() * bytes, tensor.rows());
    if tensor.is_dense() {
        return Block {
            pointer: pointer(tensor),
            pitch: width * rows,
            width: width * rows,
            rows: 1,
        };
    }
    Block { pointer: pointer(tensor), pitch: tensor.stride() * bytes, width, rows }
}

impl Backend for Cuda {
    const STATES: &[DType] = &[DType::F32, DType::BF16];

    type Buffer = CudaBuffer;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn policy(&self) -> Policy {
        self.options.policy()
    }

    fn allocate(&self, bytes: usize, class: Memory, label: &str) -> Result<CudaBuffer> {
        self.outside_capture(label)?;
        self.pool.allocate(bytes, class, label)
    }

    fn same(a: &CudaBuffer, b: &CudaBuffer) -> bool {
        a.same(b)
    }

    async fn load(&self, weight: &StoredWeight) -> Result<Weight<Self>> {
        self.load_weight(weight).await
    }

    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()> {
        self.outside_capture("a write")?;
        self.staging().upload(block(to), bytes)
    }

    async fn read(&self, from: &Tensor<Self>) -> Result<Vec<u8>> {
        self.outside_capture("a read")?;
        self.staging().download(block(from))
    }

    fn read_later(&self, from: &Tensor<Self>) -> Result<LocalFuture<'static, Result<Vec<u8>>>> {
        self.outside_capture("a read")?;
        self.later.download(block(from))
    }

    fn runs_ahead(&self) -> bool {
        on("ahead")
    }

    fn rounding(&self, op: &Matmul<'_, Self>) -> f32 {
        crate::ops::rounding(self, op)
    }

    fn ledger(&self) -> Ledger {
        self.pool.ledger()
    }

    fn free_memory(&self) -> Option<u64> {
        self.driver().free_memory()
    }

    fn bucket(&self, shape: BatchShape) -> BatchShape {
        shape.in_steps()
    }

    fn mark(&self) -> Result<()> {
        self.record_mark()
    }

    async fn marks(&self) -> Result<Vec<f64>> {
        self.read_marks()
    }

    fn run_step(&self, key: StepKey, encode: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.replay(key, encode)
    }

    crate::ops::encoders! {
        embed: Embed<'_, Self>, rms_norm: RmsNorm<Self>, gated_rms_norm: GatedRmsNorm<Self>,
        matmul: Matmul<'_, Self>, causal_conv1d: CausalConv1d<Self>, ssm_scan: SsmScan<Self>, rope: Rope<Self>,
        kv_append: KvAppend<Self>, attention: Attention<Self>, activate: Activate<Self>, moe_route: MoeRoute<Self>,
        moe_group: MoeGroup<Self>, moe_matmul: MoeMatmul<'_, Self>, moe_combine: MoeCombine<Self>, add: Add<Self>,
        scale: Scale<Self>, select_rows: SelectRows<Self>, argmax: Argmax<Self>, top_k: TopK<Self>,
        draw: Draw<Self>, copy_slot: CopySlot<Self>,
    }

    crate::ops::fused_encoders! {
        norm_products: NormProducts<'_, Self>, gated_norm_matmul: GatedNormMatmul<'_, Self>,
        moe_up: MoeUp<'_, Self>, moe_down: MoeDown<'_, Self>,
    }
}
