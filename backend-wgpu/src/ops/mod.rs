//! Op hosts: each puts the calls of its op together. Operands were checked by core; windows, kernels and grids are
//! decided here.

pub(crate) mod activate;
pub(crate) mod add;
pub(crate) mod argmax;
pub(crate) mod attention;
pub(crate) mod causal_conv1d;
pub(crate) mod copy_slot;
pub(crate) mod draw;
pub(crate) mod embed;
pub(crate) mod gated_rms_norm;
pub(crate) mod kv_append;
pub(crate) mod matmul;
pub(crate) mod moe_combine;
pub(crate) mod moe_down;
pub(crate) mod moe_group;
pub(crate) mod moe_matmul;
pub(crate) mod moe_route;
pub(crate) mod moe_up;
pub(crate) mod norm_matmul;
pub(crate) mod norm_products;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod scale;
pub(crate) mod select_rows;
pub(crate) mod ssm_scan;
pub(crate) mod top_k;

use crate::kernel::Kernel;
use std::collections::HashSet;
use whipsnake_core::ops::{Activation, Store};
use whipsnake_core::tensor::DType;
use whipsnake_core::weight::Format;

/// Invocations of a workgroup of the pointwise kernels.
const POINTWISE: usize = 256;

/// Every kernel of every variant, for checks without a device.
pub fn kernels() -> Vec<Kernel> {
    let mut list = Vec::new();
    for more in [
        activate::kernels(),
        vec![add::kernel()],
        argmax::kernels(),
        attention::kernels(),
        causal_conv1d::kernels(),
        copy_slot::kernels(),
        vec![draw::kernel()],
        embed::kernels(),
        gated_rms_norm::kernels(),
        kv_append::kernels(),
        matmul::kernels(),
        vec![moe_combine::kernel()],
        moe_group::kernels(),
        moe_matmul::kernels(),
        moe_route::kernels(),
        moe_up::kernels(),
        norm_matmul::kernels(),
        rms_norm::kernels(),
        vec![rope::kernel()],
        vec![scale::kernel()],
        vec![select_rows::kernel()],
        ssm_scan::kernels(),
        top_k::kernels(),
    ] {
        list.extend(more);
    }
    let mut seen = HashSet::new();
    list.retain(|kernel| seen.insert(kernel.clone()));
    list
}

/// Workgroups of a pointwise kernel over `rows * cols` elements.
fn pointwise(rows: usize, cols: usize) -> usize {
    (rows * cols).div_ceil(POINTWISE)
}

/// The number of a pointwise function in `common.wgsl`.
const fn activation_number(function: Activation) -> usize {
    match function {
        Activation::Identity => 0,
        Activation::Silu => 1,
        Activation::Relu2 => 2,
        Activation::Gelu => 3,
        Activation::Sigmoid => 4,
    }
}

/// The number of a format in `common_weight.wgsl`.
pub(crate) const fn format_number(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::BF16 => 2,
        Format::Nvfp4 => 3,
        Format::Fp8 => 4,
    }
}

/// The number of a cache's dtype, as formats are numbered, and its elements a word.
const fn cache_number(dtype: DType) -> (u32, usize) {
    match dtype {
        DType::F32 | DType::U32 => (0, 1),
        DType::F16 => (1, 2),
        DType::BF16 => (2, 2),
        DType::F8E4M3 => (4, 4),
    }
}

/// Every dtype of a cache.
const CACHES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3];

/// Vectors of four elements in a 16-byte unit.
pub(crate) const fn unit_fours(format: Format) -> usize {
    match format {
        Format::F32 => 1,
        Format::F16 | Format::BF16 => 2,
        Format::Fp8 => 4,
        Format::Nvfp4 => 8,
    }
}

/// A store as the flag and the scale that shaders take.
const fn store_parts(store: Store) -> (usize, f32) {
    match store {
        Store::Replace => (0, 1.0),
        Store::Accumulate { scale } => (1, scale),
    }
}
