//! Dense products of many rows in FP8, for those who ask for them with `WHIPSNAKE_CUDA_ON=fp8`: twice the rate of bf16, other
//! numbers. Weights are rounded from NVFP4 (FP8 ones are there), x to E4M3 with a scale a row; cuBLASLt multiplies.

use super::THREADS;
use crate::cublaslt::{Product, Shape as ProductShape, Types};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::switches::wanted;
use crate::view::{bank, narrow, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{Matmul, Store};
use whipsnake_core::tensor::DType;
use whipsnake_core::weight::Format;

/// From this many rows the product saves more than rounding its operands costs.
const ROWS: usize = 512;

/// Whether the product runs in FP8: it is asked for, and the device and the weight's format allow it.
pub(super) fn takes(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> bool {
    let formats = matches!(op.weight.format, Format::Nvfp4 | Format::Fp8);
    let sizes = op.weight.cols.is_multiple_of(16) && op.weight.rows.is_multiple_of(16);
    wanted("fp8") && cuda.fp8() && formats && sizes && op.out.rows() >= ROWS
}

/// Queues the product; the operands are those that cuBLASLt takes in bf16.
pub(super) fn matmul_fp8(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<bool> {
    let Some(library) = cuda.cublaslt() else { return Ok(false) };
    let ([rows, outputs], inputs) = (op.out.shape(), op.weight.cols);
    let packed = op.weight.format == Format::Nvfp4;
    // Operands begin at multiples of 256 bytes.
    let sizes = [if packed { outputs * inputs } else { 0 }, rows * inputs, outputs * 4, rows * 4];
    let mut next = 0;
    let starts = sizes.map(|bytes| {
        let start = next;
        next += bytes.next_multiple_of(256);
        start as u64
    });
    let base = cuda.workspace(next)?;
    let [weight_to, x, weight_scale, x_scale] = starts.map(|start| base + start);
    let planes = bank(op.weight);
    let weight = if packed { weight_to } else { planes.data };
    let mut args = Args::new();
    if packed {
        args.push(planes).push(weight).push(weight_scale);
        let grid = [narrow(outputs * inputs / 8).div_ceil(THREADS), 1, 1];
        let shape = Shape { grid, threads: THREADS, shared: 0 };
        cuda.launch("matmul_fp8", "matmul_fp8_weight", shape, &mut args)?;
    } else {
        args.push(weight_scale).push(narrow(outputs));
        let grid = [narrow(outputs).div_ceil(THREADS), 1, 1];
        let shape = Shape { grid, threads: THREADS, shared: 0 };
        cuda.launch("matmul_fp8", "matmul_fp8_ones", shape, &mut args)?;
    }
    let mut args = Args::new();
    args.push(window(&op.x)).push(x).push(x_scale);
    let shape = Shape { grid: [narrow(rows), 1, 1], threads: THREADS, shared: 0 };
    cuda.launch("matmul_fp8", "matmul_fp8_rows", shape, &mut args)?;
    let shape = ProductShape {
        rows,
        outputs,
        inputs,
        x_stride: inputs,
        out_stride: op.out.stride(),
        out_f32: op.out.dtype() == DType::F32,
        types: Types::Fp8,
    };
    let (scale, beta) = match op.store {
        Store::Replace => (1.0, 0.0),
        Store::Accumulate { scale } => (scale, 1.0),
    };
    let alpha = scale * op.weight.scales[0];
    let product = Product {
        weight,
        x,
        out: window(&op.out).data,
        alpha,
        beta,
        scales: Some([weight_scale, x_scale]),
    };
    library.run(cuda, shape, product).map(|()| true)
}
