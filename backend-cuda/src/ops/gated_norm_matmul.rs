//! A gated norm with the product after it, as one launch for few rows.

use super::common_nvfp4::{self, Deal, padded_rows, row_pitch, sums};
use super::common_vec::deal;
use super::{StoreArg, common_phases, one};
use crate::cuda::Cuda;
use crate::view::{Bank, Window, bank, in_pieces, narrow, optional, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{GateOrder, GatedNormMatmul};
use whipsnake_core::step::Step;
use whipsnake_core::tensor::DType;

/// Up to this many rows every block norms for itself; from there on that costs more than a launch.
const NORMED_HERE: usize = 2;

/// Outputs of an NVFP4 tile.
const TILE: usize = 8;

/// Twin of `GatedProduct` in `kernels/common_gated.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct GatedProduct {
    y: Window,
    z: Window,
    gain: u64,
    norm_groups: u32,
    gate_first: u32,
    eps: f32,
    rows: u32,
    weight: Bank,
    bias: u64,
    how: StoreArg,
    out: Window,
    groups: u32,
    splits: u32,
}

pub(crate) fn gated_norm_matmul(
    cuda: &Cuda,
    _step: &Step<'_, Cuda>,
    op: &GatedNormMatmul<'_, Cuda>,
) -> Result<bool> {
    if common_phases::gated_norm_matmul(cuda, op) {
        return Ok(true);
    }
    let (norm, matmul) = (&op.norm, &op.matmul);
    let [rows, cols] = norm.y.shape();
    let piece = |tensor| in_pieces(tensor) && tensor.dtype() == DType::BF16;
    let fits = rows <= NORMED_HERE
        && (cols / norm.groups).is_multiple_of(8)
        && piece(&norm.y)
        && piece(&norm.z);
    let (Some(deal), true) = (deal(cuda, &matmul.x, matmul.weight, false), fits) else {
        return Ok(false);
    };
    let whole = (cols / norm.groups).is_multiple_of(16)
        && common_nvfp4::takes(cuda, "gated_norm_matmul_nvfp4", matmul.weight);
    let spread = Deal::new(matmul.weight.rows.div_ceil(TILE), cuda.multiprocessors());
    let sums = sums([padded_rows(rows), TILE], spread.runs);
    let sizes = [row_pitch(TILE, cols), sums];
    let nvfp4 = spread.shape(cuda, padded_rows(rows), sizes).filter(|_| whole);
    let product = GatedProduct {
        y: window(&norm.y),
        z: window(&norm.z),
        gain: pointer(&norm.weight),
        norm_groups: narrow(norm.groups),
        gate_first: u32::from(norm.order == GateOrder::GateThenNorm),
        eps: norm.eps,
        rows: narrow(rows),
        weight: bank(matmul.weight),
        bias: optional(matmul.bias.as_ref()),
        how: StoreArg::from(matmul.store),
        out: window(&matmul.out),
        groups: deal.groups,
        splits: deal.splits,
    };
    let mut args = one(product);
    match nvfp4 {
        Some(shape) => {
            let name = format!("gated_norm_matmul_nvfp4_{}", padded_rows(rows));
            cuda.launch_early("gated_norm_matmul_nvfp4", &name, shape, &mut args)?;
        }
        None => {
            let name = "gated_norm_matmul";
            cuda.launch_early(name, name, deal.shape(), &mut args)?;
        }
    }
    Ok(true)
}
