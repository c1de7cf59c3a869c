//! Products of many rows with weights in bf16, FP8 or block-scaled FP4 through cuBLASLt, where the library is on the machine.
//!
//! It is loaded at the first such product; without it, and where it refuses a product, the kernels of `kernels/` do the same
//! work more slowly.

use crate::cuda::Cuda;
use crate::driver::Block;
use crate::library;
use crate::memory::CudaBuffer;
use cudarc::cublaslt::{result, sys};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use whipsnake_core::backend::Memory;
use whipsnake_core::error::{Error, Result};

/// Scratch that algorithms may use.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Weights of fewer rows share the first vector of ones.
const ONES: usize = 64 << 10;

/// Most shapes that are remembered.
const MAX_PLANS: usize = 1024;

/// `out[rows, outputs] = alpha * x[rows, inputs] weight[outputs, inputs]^T + beta * out`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub rows: usize,
    pub outputs: usize,
    pub inputs: usize,
    /// Elements from one row to the next.
    pub x_stride: usize,
    pub out_stride: usize,
    /// Whether `out` is f32, else bf16.
    pub out_f32: bool,
    pub types: Types,
}

/// What x and weight are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Types {
    Bf16,
    /// E4M3, with an f32 scale for each row of x and of the weight.
    Fp8,
    /// E2M1, with an E4M3 scale for each 16 columns of a row, in the library's order (`tile_place` of `kernels/matmul_fp4.cu`).
    Fp4,
}

/// Where the operands of a product lie, and its factors.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub weight: u64,
    pub x: u64,
    pub out: u64,
    pub factors: Factors,
    /// Where the scales of weight and x lie, for [`Types::Fp8`] and [`Types::Fp4`].
    pub scales: Option<[u64; 2]>,
}

/// `alpha` and `beta` of a product.
#[derive(Clone, Copy)]
pub(crate) enum Factors {
    /// Known here.
    Host([f32; 2]),
    /// Where both lie on the device, for [`Types::Fp4`].
    Device(u64),
}

/// The library's description of a product, and the algorithm that it advises.
#[derive(Clone, Copy)]
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    /// Of the weight, x and out.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// The library, opened.
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: CudaBuffer,
    /// `None` where the library refuses the shape.
    plans: RefCell<HashMap<Shape, Option<Plan>>>,
    /// Vectors of ones: what graphs point at stays.
    ones: RefCell<Vec<(usize, CudaBuffer)>>,
}

fn checked<T>(what: &str, result: std::result::Result<T, result::CublasError>) -> Result<T> {
    result.map_err(|error| Error::device(format!("cublaslt: {what}: {:?}", error.0)))
}

/// Sets an attribute of a description; `value` is of the attribute's type.
fn set<T>(
    product: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<()> {
    // SAFETY: the description lives, the value is read during the call.
    checked("an attribute", unsafe {
        result::set_matmul_desc_attribute(
            product,
            attribute,
            std::ptr::from_ref(value).cast(),
            size_of::<T>(),
        )
    })
}

/// Tells a product where the scales of weight and x lie.
fn point(product: sys::cublasLtMatmulDesc_t, scales: Option<[u64; 2]>) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let Some([weight, x]) = scales else { return Ok(()) };
    set(product, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &weight)?;
    set(product, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x)
}

impl CublasLt {
    /// `None` where the library is missing or refuses the device: nothing depends on it.
    pub fn open(cuda: &Cuda) -> Option<Self> {
        let path = library::load_cublaslt()?;
        let opened = checked("opening", result::create_handle()).and_then(|handle| {
            let workspace = cuda.pool().allocate(WORKSPACE_BYTES, Memory::Scratch, "cublaslt")?;
            Ok(Self { handle, workspace, plans: RefCell::default(), ones: RefCell::default() })
        });
        match opened {
            Ok(library) => Some(library),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "products run on this program's own kernels");
                None
            }
        }
    }

    /// Whether the library takes products of this shape on this device; a refusal is told once.
    pub fn takes(&self, shape: Shape) -> bool {
        if let Some(plan) = self.plans.borrow().get(&shape) {
            return plan.is_some();
        }
        let plan = self.make_plan(shape);
        let Shape { rows, outputs, inputs, types, .. } = shape;
        match &plan {
            Ok(_) => tracing::debug!(rows, outputs, inputs, ?types, "the library has a product"),
            Err(error) => {
                tracing::warn!(%error, rows, outputs, inputs, ?types, "products run without the library's");
            }
        }
        let mut plans = self.plans.borrow_mut();
        if plans.len() >= MAX_PLANS {
            plans.drain().filter_map(|(_, plan)| plan).for_each(Plan::destroy);
        }
        let plan = plan.ok();
        plans.insert(shape, plan);
        plan.is_some()
    }

    /// At least `count` scales of one. A capture only finds what an eager run has made.
    pub fn ones(&self, cuda: &Cuda, count: usize) -> Result<u64> {
        let mut list = self.ones.borrow_mut();
        if let Some((_, buffer)) = list.last().filter(|(held, _)| *held >= count) {
            return Ok(buffer.pointer());
        }
        cuda.outside_capture("scales of one")?;
        let held = count.next_power_of_two().max(ONES);
        let buffer = cuda.pool().allocate(held * 4, Memory::Scratch, "scales of one")?;
        let block = Block { pointer: buffer.pointer(), pitch: held * 4, width: held * 4, rows: 1 };
        cuda.staging().upload(block, bytemuck::cast_slice(&vec![1.0f32; held]))?;
        let pointer = buffer.pointer();
        list.push((held, buffer));
        Ok(pointer)
    }

    /// Queues a product of a shape that the library takes.
    pub fn run(&self, cuda: &Cuda, shape: Shape, product: Product) -> Result<()> {
        let plan = self.plans.borrow().get(&shape).copied().flatten();
        let plan =
            plan.ok_or_else(|| Error::device("cublaslt: a product that nobody asked for"))?;
        let [weight, x, out] = plan.layouts;
        point(plan.product, product.scales)?;
        let address = |pointer: u64| pointer as *mut c_void;
        let [alpha, beta]: [*const c_void; 2] = match &product.factors {
            Factors::Host([alpha, beta]) => {
                [std::ptr::from_ref(alpha).cast(), std::ptr::from_ref(beta).cast()]
            }
            Factors::Device(pointer) => [*pointer, *pointer + 4].map(|at| at as *const c_void),
        };
        // SAFETY: the step checked the operands, which the layouts describe; factors on the host are read during the call,
        // those on the device lie in the workspace; the library's workspace lives as long as it does.
        checked("a product", unsafe {
            result::matmul(
                self.handle,
                plan.product,
                alpha,
                beta,
                address(product.weight),
                weight,
                address(product.x),
                x,
                address(product.out),
                out,
                address(product.out),
                out,
                &raw const plan.algorithm,
                address(self.workspace.pointer()),
                WORKSPACE_BYTES,
                cuda.driver().stream().cu_stream().cast(),
            )
        })
    }

    /// The library's matrices are column-major: what is a row here is a column there.
    fn make_plan(&self, shape: Shape) -> Result<Plan> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        use sys::cublasLtMatmulMatrixScale_t::*;
        use sys::cudaDataType::{CUDA_R_4F_E2M1, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_32F};
        let layout = |dtype, rows: usize, cols: usize, stride: usize| {
            let made = result::create_matrix_layout(dtype, rows as u64, cols as u64, stride as i64);
            checked("a layout", made)
        };
        let out_type = if shape.out_f32 { CUDA_R_32F } else { CUDA_R_16BF };
        let (in_type, mode) = match shape.types {
            Types::Bf16 => (CUDA_R_16BF, None),
            Types::Fp8 => (CUDA_R_8F_E4M3, Some(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)),
            Types::Fp4 => (CUDA_R_4F_E2M1, Some(CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3)),
        };
        let kind = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let product = checked("a description", result::create_matmul_desc(kind, CUDA_R_32F))?;
        let transposed = cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_T;
        set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed)?;
        if let Some(mode) = mode {
            set(product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode)?;
            set(product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode)?;
            // Advice may depend on scales being there, not on where they are.
            point(product, Some([self.workspace.pointer(); 2]))?;
        }
        if shape.types == Types::Fp4 {
            let device = sys::cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE;
            set(product, CUBLASLT_MATMUL_DESC_POINTER_MODE, &device)?;
        }
        let layouts = [
            layout(in_type, shape.inputs, shape.outputs, shape.inputs)?,
            layout(in_type, shape.inputs, shape.rows, shape.x_stride)?,
            layout(out_type, shape.outputs, shape.rows, shape.out_stride)?,
        ];
        match self.advise(product, layouts) {
            Ok(algorithm) => Ok(Plan { product, layouts, algorithm }),
            Err(error) => {
                destroy(product, layouts);
                Err(error)
            }
        }
    }

    fn advise(
        &self,
        product: sys::cublasLtMatmulDesc_t,
        layouts: [sys::cublasLtMatrixLayout_t; 3],
    ) -> Result<sys::cublasLtMatmulAlgo_t> {
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        let wishes = checked("preferences", result::create_matmul_pref())?;
        let workspace = WORKSPACE_BYTES as u64;
        // Partial sums stay f32; operands lie at multiples of 16 bytes.
        let (reduction, alignment) = (2u32, 16u32);
        let wish = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preferences were made above, each value is of the attribute's type.
            checked("a preference", unsafe {
                result::set_matmul_pref_attribute(wishes, attribute, value, bytes)
            })
        };
        wish(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), 8)?;
        wish(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const reduction).cast(), 4)?;
        for attribute in [
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            wish(attribute, (&raw const alignment).cast(), 4)?;
        }
        let [weight, x, out] = layouts;
        // SAFETY: all were made above and live.
        let advice = unsafe {
            result::get_matmul_algo_heuristic(self.handle, product, weight, x, out, out, wishes)
        };
        // SAFETY: made above, not used again.
        checked("preferences", unsafe { result::destroy_matmul_pref(wishes) })?;
        Ok(checked("choosing an algorithm", advice)?.algo)
    }
}

/// Gives up a description and its layouts.
fn destroy(product: sys::cublasLtMatmulDesc_t, layouts: [sys::cublasLtMatrixLayout_t; 3]) {
    // SAFETY: their only owner gives them up; calls that are queued hold nothing of them.
    unsafe {
        let _ = result::destroy_matmul_desc(product);
        for layout in layouts {
            let _ = result::destroy_matrix_layout(layout);
        }
    }
}

impl Plan {
    fn destroy(self) {
        destroy(self.product, self.layouts);
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.borrow_mut().drain().filter_map(|(_, plan)| plan).for_each(Plan::destroy);
        // SAFETY: the handle's only owner gives it up.
        if let Err(error) = checked("closing", unsafe { result::destroy_handle(self.handle) }) {
            tracing::warn!(%error, "the library stays open");
        }
    }
}
