//! A gated norm with the product after it, as one launch for few rows.

use super::common_vec::deal;
use super::{StoreArg, one};
use crate::cuda::Cuda;
use crate::view::{Bank, Window, bank, in_pieces, narrow, optional, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{GateOrder, GatedNormMatmul};
use whipsnake_core::step::Step;
use whipsnake_core::tensor::DType;

/// Up to this many rows every block norms for itself; from there on that costs more than a launch.
const NORMED_HERE: usize = 2;

/// Twin of `GatedProduct` in `kernels/gated_norm_matmul.cu`.
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
    let (norm, matmul) = (&op.norm, &op.matmul);
    let [rows, cols] = norm.y.shape();
    let piece = |tensor| in_pieces(tensor) && tensor.dtype() == DType::BF16;
    let fits = rows <= NORMED_HERE
        && (cols / norm.groups).is_multiple_of(8)
        && piece(&norm.y)
        && piece(&norm.z);
    let (Some(deal), true) = (deal(cuda, &matmul.x, matmul.weight), fits) else {
        return Ok(false);
    };
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
    let (name, shape) = ("gated_norm_matmul", deal.shape());
    cuda.launch_early(name, name, shape, &mut one(product))?;
    Ok(true)
}
