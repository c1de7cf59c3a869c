//! Dense products of many rows in FP8, for those who ask for them with `WHIPSNAKE_CUDA_ON=fp8`: twice the rate of bf16, other
//! numbers. Weights are rounded from NVFP4 (FP8 ones are there), x to E4M3 with a scale a row; cuBLASLt multiplies.

use super::matmul_many::{factors, library};
use super::{THREADS, line};
use crate::cublaslt::{Factors, Product, Types};
use crate::cuda::Cuda;
use crate::kernels::Args;
use crate::switches::wanted;
use crate::view::{bank, window};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Matmul;
use whipsnake_core::weight::Format;

/// From this many rows the product saves more than rounding its operands costs.
const ROWS: usize = 512;

/// What NVFP4 weights are divided by: the largest value of a code.
const LARGEST_CODE: f32 = 6.0;

/// Whether the product runs in FP8: it is asked for, and the device and the weight's format allow it.
pub(super) fn takes(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> bool {
    let formats = matches!(op.weight.format, Format::Nvfp4 | Format::Fp8);
    let sizes = op.weight.cols.is_multiple_of(16) && op.weight.rows.is_multiple_of(16);
    wanted("fp8") && cuda.fp8() && formats && sizes && op.out.rows() >= ROWS
}

/// Relative L2 of the product that rounding its operands costs at most.
///
/// E4M3 has three bits behind the point: over values whose logarithms are spread evenly, the step of 2^-3 of a binade gives
/// 2^-3 / sqrt(12) * sqrt(3 / (8 ln 2)) = 2.65e-2 for x. NVFP4 weights add 1.4e-2 (measured: codes of 1.5, 3 and 6 stay exact),
/// FP8 ones nothing. A tenth more is left to chance.
pub(super) fn rounding(format: Format) -> f32 {
    let (x, weight) = (2.65e-2f32, if format == Format::Nvfp4 { 1.4e-2 } else { 0.0 });
    1.1 * x.hypot(weight)
}

/// Queues the product where the library takes it; the operands are those that it takes in bf16.
pub(super) fn matmul_fp8(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<bool> {
    let Some((library, shape)) = library(cuda, op, Types::Fp8) else { return Ok(false) };
    let ([rows, outputs], inputs) = (op.out.shape(), op.weight.cols);
    let packed = op.weight.format == Format::Nvfp4;
    let sizes = [rows * inputs, rows * 4, if packed { outputs * inputs } else { 0 }];
    let [x, x_scale, weight_to] = cuda.workspaces(sizes)?;
    let planes = bank(op.weight);
    let weight = if packed { weight_to } else { planes.data };
    if packed {
        let mut args = Args::new();
        args.push(planes).push(weight);
        let blocks = (outputs * inputs / 8).div_ceil(THREADS as usize);
        cuda.launch("matmul_fp8", "matmul_fp8_weight", line(blocks, THREADS), &mut args)?;
    }
    let mut args = Args::new();
    args.push(window(&op.x)).push(x).push(x_scale);
    cuda.launch("matmul_fp8", "matmul_fp8_rows", line(rows, THREADS), &mut args)?;
    let times = op.weight.scales[0] * if packed { LARGEST_CODE } else { 1.0 };
    let product = Product {
        weight,
        x,
        out: window(&op.out).data,
        factors: Factors::Host(factors(op, times)),
        scales: Some([library.ones(cuda, outputs)?, x_scale]),
    };
    library.run(cuda, shape, product).map(|()| true)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use whipsnake_core::conformance::{Fill, Stream};
    use whipsnake_core::quant::{e2m1_to_f32, e4m3_to_f32, f32_to_e4m3, to_nvfp4};

    /// Relative L2 between pairs of what is there and what was wanted.
    pub fn distance(pairs: impl Iterator<Item = (f32, f32)>) -> f32 {
        let (mut apart, mut whole) = (0f64, 0f64);
        for (got, want) in pairs {
            apart += f64::from(got - want).powi(2);
            whole += f64::from(want).powi(2);
        }
        (apart / whole).sqrt() as f32
    }

    #[test]
    fn rounding_normal_deviates_costs_what_the_bounds_say() {
        let values = Stream::new("matmul_fp8", "rounding").values(Fill::Normal(1.0), 1 << 18);
        let round = |v: f32| e4m3_to_f32(f32_to_e4m3(v));
        let x = distance(values.chunks(1024).flat_map(|row| {
            let factor = 448.0 / row.iter().fold(0f32, |m, v| m.max(v.abs()));
            row.iter().map(move |v| (round(v * factor) / factor, *v))
        }));
        let packed = to_nvfp4(&values);
        let weight = distance(packed.codes.iter().enumerate().flat_map(|(i, pair)| {
            let scale = e4m3_to_f32(packed.scales[i * 2 / 16]);
            [pair & 15, pair >> 4].map(|code| {
                let value = e2m1_to_f32(code) * scale / LARGEST_CODE;
                (round(value), value)
            })
        }));
        for (cost, bound) in
            [(x, rounding(Format::Fp8)), (x.hypot(weight), rounding(Format::Nvfp4))]
        {
            assert!(cost < bound / 1.09 && cost > bound / 1.12, "{cost} of {bound}");
        }
    }
}
