//! A pre-norm and the product that follows it: one dispatch where rows are few.

use super::matmul::{few_row_kernels, for_rows, unit_of};
use crate::Wgpu;
use crate::call::{Call, in_fours, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::NormMatmul;
use whipsnake_core::step::{FusedOp, Step};
use whipsnake_core::weight::Format;

const SHADER: &str = "norm_matmul";

pub(crate) fn kernels() -> Vec<Kernel> {
    let kernels = |format| few_row_kernels(SHADER, format, &[1, 2, 4, 8]);
    Format::ALL.into_iter().flat_map(kernels).collect()
}

pub(crate) fn encode(step: &Step<'_, Wgpu>, op: &NormMatmul<'_, Wgpu>) -> Result<()> {
    let gpu = step.backend();
    let format = op.weight.format;
    // Without barriers every block of outputs would norm the row anew.
    let fused = !gpu.variants.barrier_free() && in_fours(&op.norm);
    let Some(unit) = unit_of(&op.x, format).filter(|_| fused) else {
        return op.unfused(step);
    };
    want_f32("norm_matmul", &[&op.x, &op.out])?;
    let [rows, inputs] = op.x.shape();
    for piece in gpu.pieces(op.weight) {
        let (kernel, outputs) = gpu.variants.vec_kernel(SHADER, format, piece.count);
        let call = Call::new(for_rows(kernel, format, rows))
            .whole(piece.data, false)
            .whole(piece.scales, false)
            .input(&op.x)
            .input(&op.norm)
            .output(&op.out)
            .sizes([rows, inputs / unit, piece.count, piece.first])
            .floats([op.eps, op.weight.scales[0]]);
        gpu.dispatch(call, piece.count.div_ceil(outputs))?;
    }
    Ok(())
}
