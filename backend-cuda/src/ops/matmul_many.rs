//! Linear layers of many rows of bf16: cuBLASLt over a bf16 copy of the weight, Hopper's tiles, split f32 products.

use super::{StoreArg, matmul_fp4, matmul_fp8, one};
use crate::cublaslt::{self, CublasLt, Factors, Product, Types};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::switches::on;
use crate::view::{Bank, Window, bank, in_pieces, narrow, optional, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{Matmul, Store};
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Weight};

/// From this many rows a dense product of the whole weight pays for its conversion to bf16.
const DENSE_ROWS: usize = 128;

/// The same of BF16 weights, which need none: above what one pass of `matmul_few` takes.
const DENSE_ROWS_BF16: usize = 17;

/// From this many rows tiles are full enough for Hopper's form.
const WIDE_ROWS: usize = 64;

/// From this many rows its widest tiles fill the device.
const WIDEST_ROWS: usize = 1024;

/// From this many rows the split form of f32 weights beats the plain one.
const SPLIT_ROWS: usize = 16;

/// Outputs of a block of Hopper's form: `OUTPUTS` of `Wide` in `kernels/common_sm90.cuh`.
pub(super) const WIDE_OUTPUTS: usize = 128;

/// Twin of `Linear` in `kernels/matmul_sm90.cu` and `kernels/matmul_split.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Linear {
    x: Window,
    weight: Bank,
    bias: u64,
    store: StoreArg,
    out: Window,
    rows: u32,
    unused: u32,
}

/// What NVFP4 values are short of in the tensor-core forms: `FACTOR` of `kernels/common_mma.cuh`.
fn factor(format: Format) -> f32 {
    if format == Format::Nvfp4 { 256.0 } else { 1.0 }
}

/// Whether Hopper's form takes a product with this weight.
pub(super) fn wide(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
    out: &Tensor<Cuda>,
) -> bool {
    let operands = x.dtype() == DType::BF16 && in_pieces(x) && in_pieces(out);
    let outs = matches!(out.dtype(), DType::BF16 | DType::F32) && weight.rows.is_multiple_of(4);
    let stages = weight.format == Format::Nvfp4 && weight.cols.is_multiple_of(64);
    cuda.tuned() && cuda.hopper() && operands && outs && stages && on("wgmma")
}

/// Dynamic shared memory of a block with so many rows and stages: `BYTES` of `Wide` in `kernels/common_sm90.cuh`.
pub(super) fn wide_shared(rows: usize, stages: usize) -> u32 {
    narrow(stages * (rows * 128 + WIDE_OUTPUTS * 32) + 2 * WIDE_OUTPUTS * 16)
}

/// Queues the product where one of the forms takes it.
pub(super) fn matmul_many(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<bool> {
    let rows = op.out.rows();
    if !x_fits(cuda, op) {
        return Ok(false);
    }
    if op.weight.format == Format::F32 {
        let pieces = op.weight.cols.is_multiple_of(8);
        if rows < SPLIT_ROWS || !pieces || !on("matmul_split") {
            return Ok(false);
        }
        return split(cuda, op).map(|()| true);
    }
    if cuda.fp4() && matmul_fp4::takes(op) {
        return matmul_fp4::by_warps(cuda, op).map(|()| true);
    }
    if dense(cuda, op)? {
        return Ok(true);
    }
    if rows < WIDE_ROWS || !wide(cuda, &op.x, op.weight, &op.out) {
        return Ok(false);
    }
    // Wide tiles convert the weight less often; narrow ones fill the device earlier.
    let outputs = op.weight.rows.div_ceil(WIDE_OUTPUTS);
    let tile = if rows >= WIDEST_ROWS { 256 } else { 128 };
    let grid = [narrow(outputs), narrow(rows.div_ceil(tile)), 1];
    let shape = Shape { grid, threads: 256, shared: wide_shared(tile, 5) };
    let name = format!("matmul_sm90_{tile}");
    cuda.launch("matmul_sm90", &name, shape, &mut one(linear(op))).map(|()| true)
}

/// What the forms of this back end are told.
fn linear(op: &Matmul<'_, Cuda>) -> Linear {
    Linear {
        x: window(&op.x),
        weight: bank(op.weight),
        bias: optional(op.bias.as_ref()),
        store: StoreArg::from(op.store),
        out: window(&op.out),
        rows: narrow(op.out.rows()),
        unused: 0,
    }
}

/// From this many rows the larger blocks of f32 weights, which read less in all, are faster.
const SPLIT_MANY: usize = 2560;

/// f32 weights as sums of three bf16.
fn split(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<()> {
    let [rows, outputs] = op.out.shape();
    // `OUTPUTS`, `ROWS`, `THREADS` and `STAGES * STAGE` of the kernel.
    let (tile, threads, shared) = if rows < SPLIT_MANY {
        ([16, 32], 256, 5 * (16 * 576 + 32 * 288))
    } else {
        ([64, 64], 512, 3 * (64 * 320 + 64 * 160))
    };
    let grid = [narrow(outputs.div_ceil(tile[0])), narrow(rows.div_ceil(tile[1])), 1];
    let name = format!("matmul_split_{}_{}", tile[0], tile[1]);
    cuda.launch("matmul_split", &name, Shape { grid, threads, shared }, &mut one(linear(op)))
}

/// The product as the library sees it; x in another type than bf16 is a dense copy.
fn product_shape(op: &Matmul<'_, Cuda>, types: Types) -> cublaslt::Shape {
    let [rows, outputs] = op.out.shape();
    let inputs = op.weight.cols;
    cublaslt::Shape {
        rows,
        outputs,
        inputs,
        x_stride: if types == Types::Bf16 { op.x.stride() } else { inputs },
        out_stride: op.out.stride(),
        out_f32: op.out.dtype() == DType::F32,
        types,
    }
}

/// The library, where it is there and takes the product with operands of these types, and the product's shape.
pub(super) fn library<'a>(
    cuda: &'a Cuda,
    op: &Matmul<'_, Cuda>,
    types: Types,
) -> Option<(&'a CublasLt, cublaslt::Shape)> {
    let shape = product_shape(op, types);
    cuda.cublaslt().filter(|library| library.takes(shape)).map(|library| (library, shape))
}

/// `alpha`, `times` what the operands are short of, and `beta`.
pub(super) fn factors(op: &Matmul<'_, Cuda>, times: f32) -> [f32; 2] {
    match op.store {
        Store::Replace => [times, 0.0],
        Store::Accumulate { scale } => [scale * times, 1.0],
    }
}

/// Whether forms of many rows take x.
fn x_fits(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> bool {
    cuda.tuned() && op.x.dtype() == DType::BF16 && in_pieces(&op.x)
}

/// Whether the library may have the product.
fn fits_library(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> bool {
    let out = matches!(op.out.dtype(), DType::F32 | DType::BF16) && in_pieces(&op.out);
    let sizes = op.weight.cols.is_multiple_of(16) && op.weight.rows.is_multiple_of(8);
    let rows = if op.weight.format == Format::BF16 { DENSE_ROWS_BF16 } else { DENSE_ROWS };
    let many = op.out.rows() >= rows;
    x_fits(cuda, op) && out && sizes && many && op.bias.is_none() && on("cublaslt")
}

/// Relative L2 by which rounded operands, where they were asked for, may move a product.
pub(crate) fn rounding(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> f32 {
    let fits = fits_library(cuda, op);
    let takes = |types| fits && library(cuda, op, types).is_some();
    if matmul_fp4::takes(op) && (x_fits(cuda, op) && cuda.fp4() || takes(Types::Fp4)) {
        matmul_fp4::ROUNDING
    } else if matmul_fp8::takes(cuda, op) && takes(Types::Fp8) {
        matmul_fp8::rounding(op.weight.format)
    } else {
        0.0
    }
}

/// Through cuBLASLt, where it is there and takes the operands.
fn dense(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<bool> {
    let name = match op.weight.format {
        Format::BF16 => None,
        Format::Fp8 => Some("fp8"),
        Format::Nvfp4 => Some("nvfp4"),
        Format::F32 | Format::F16 => return Ok(false),
    };
    if !fits_library(cuda, op) {
        return Ok(false);
    }
    if (matmul_fp4::takes(op) && matmul_fp4::through_library(cuda, op)?)
        || (matmul_fp8::takes(cuda, op) && matmul_fp8::matmul_fp8(cuda, op)?)
    {
        return Ok(true);
    }
    let Some((library, shape)) = library(cuda, op, Types::Bf16) else { return Ok(false) };
    let planes = bank(op.weight);
    let mut weight = planes.data;
    if let Some(name) = name {
        let elements = op.weight.rows * op.weight.cols;
        weight = cuda.workspace(elements * 2)?;
        let mut args = Args::new();
        args.push(planes).push(weight);
        let grid = [narrow(elements / 8).div_ceil(256), 1, 1];
        let blocks = Shape { grid, threads: 256, shared: 0 };
        let name = format!("matmul_dequantise_{name}");
        cuda.launch("matmul_dequantise", &name, blocks, &mut args)?;
    }
    let times = op.weight.scales[0] * factor(op.weight.format);
    let product = Product {
        weight,
        x: window(&op.x).data,
        out: window(&op.out).data,
        factors: Factors::Host(factors(op, times)),
        scales: None,
    };
    library.run(cuda, shape, product).map(|()| true)
}
