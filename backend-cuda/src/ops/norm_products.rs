//! A norm with the products and the convolution that wait for it, as one launch for few rows.

use super::common_vec::{Deal, THREADS, deal, resident, streams, tiles};
use super::matmul_few::{self, matmul_few};
use super::norm_products_nvfp4::norm_products_nvfp4;
use super::{common_phases, function, one};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::view::{Bank, Window, bank, in_pieces, narrow, optional, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{CausalConv1d, Matmul, NormProducts, Product, Store};
use whipsnake_core::step::Step;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Weight};

/// Products of one launch: the length of `products` in the kernel.
pub(super) const MOST: usize = 4;

/// Up to this many rows every block norms for itself; from there on that costs more than a launch.
const NORMED_HERE: usize = 2;

/// Twin of `Product` in `kernels/common_norm_products.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ProductArg {
    weight: Bank,
    bias: u64,
    out: Window,
    function: u32,
    blocks: u32,
    groups: u32,
    splits: u32,
}

/// Twin of `Conv` in `kernels/common_conv.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Conv {
    weight: u64,
    bias: u64,
    state: Window,
    out: Window,
    places: u64,
    first: u32,
    pub channels: u32,
    pub width: u32,
    function: u32,
}

/// Twin of `NormProducts` in `kernels/common_norm_products.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Arguments {
    x: Window,
    normed: Window,
    gain: u64,
    eps: f32,
    rows: u32,
    conv: Conv,
    products: [ProductArg; MOST],
}

/// A product's part of the launch and its staged bytes, where the kernel takes it; `lines` says that all products stream.
fn argument(cuda: &Cuda, product: &Product<'_, Cuda>, lines: bool) -> Option<(ProductArg, u32)> {
    let Matmul { x, weight, bias, store, .. } = &product.matmul;
    let deal = match weight.format {
        Format::F32 if weight.cols.is_multiple_of(4) => {
            Deal::lines(cuda, x.rows(), [weight.rows, weight.cols])?
        }
        _ => deal(cuda, x, weight, lines)?,
    };
    let (out, activation) = target(product);
    let argument = ProductArg {
        weight: bank(weight),
        bias: optional(bias.as_ref()),
        out: window(out),
        function: activation,
        blocks: deal.blocks(),
        groups: deal.groups,
        splits: deal.splits,
    };
    (*store == Store::Replace).then_some((argument, deal.shared))
}

pub(super) fn conv(op: &CausalConv1d<Cuda>, first: &Matmul<'_, Cuda>) -> Option<Conv> {
    let start = op.x.offset().checked_sub(first.out.offset())?;
    let inside = op.x.stride() == first.out.stride() && start + op.x.cols() <= first.out.cols();
    let rounded = first.out.dtype() == DType::BF16 && op.x.dtype() == DType::BF16;
    (inside && rounded && op.segments.shape.longest == 1).then(|| Conv {
        weight: pointer(&op.weight),
        bias: optional(op.bias.as_ref()),
        state: window(&op.state),
        out: window(&op.out),
        places: pointer(&op.segments.places),
        first: narrow(start),
        channels: narrow(op.x.cols()),
        width: narrow(op.weight.cols()),
        function: function(op.activation),
    })
}

pub(crate) fn norm_products(
    cuda: &Cuda,
    step: &Step<'_, Cuda>,
    op: &NormProducts<'_, Cuda>,
) -> Result<bool> {
    if common_phases::norm_products(cuda, step, op)?
        || apart(cuda, step, op)?
        || norm_products_nvfp4(cuda, step, op)?
    {
        return Ok(true);
    }
    let norm = &op.norm;
    let rows = norm.x.rows();
    let fits = takes(op, 8);
    let mut weights = op.products.iter().map(|product| product.matmul.weight);
    let lines = weights.all(|w| w.format == Format::F32 || streams(cuda, rows, w));
    let list: Option<Vec<_>> =
        op.products.iter().map(|product| argument(cuda, product, lines)).collect();
    let (Some(list), true) = (list, fits) else { return Ok(false) };
    let fused_conv = op.conv.as_ref().and_then(|op_conv| conv(op_conv, &op.products[0].matmul));
    let here = rows <= NORMED_HERE;
    if !here {
        step.run(norm)?;
    }
    let shared = list.iter().map(|(_, shared)| *shared).max().unwrap_or(0);
    let mut products = [ProductArg::zeroed(); MOST];
    for (place, (argument, _)) in products.iter_mut().zip(&list) {
        *place = *argument;
    }
    share_blocks(resident(cuda, rows, shared), &op.products, &mut products[..list.len()]);
    let arguments = Arguments {
        x: window(&norm.x),
        normed: window(&norm.out),
        gain: if here { pointer(&norm.weight) } else { 0 },
        eps: norm.eps,
        rows: narrow(rows),
        conv: fused_conv.unwrap_or_else(Conv::zeroed),
        products,
    };
    let blocks = products.iter().map(|product| product.blocks).sum();
    let shape = Shape { grid: [blocks, 1, 1], threads: THREADS, shared };
    let tiles = tiles(rows);
    let (file, name) = match tiles {
        1 if lines => ("norm_products_lines", "norm_products_lines"),
        1 => ("norm_products", "norm_products_1"),
        2 => ("norm_products_eight", "norm_products_2"),
        _ => ("norm_products_sixteen", "norm_products_4"),
    };
    cuda.launch_early(file, name, shape, &mut one(arguments))?;
    rest(step, op, fused_conv)
}

/// From some rows on products are faster on their own, each through its function.
fn apart(cuda: &Cuda, step: &Step<'_, Cuda>, op: &NormProducts<'_, Cuda>) -> Result<bool> {
    let takes = |product: &Product<'_, Cuda>| {
        let matmul = &product.matmul;
        matmul.store == Store::Replace && matmul_few::takes(cuda, &matmul.x, matmul.weight)
    };
    if !op.products.iter().any(takes) {
        return Ok(false);
    }
    step.run(&op.norm)?;
    for product in &op.products {
        let Product { matmul, activate } = product;
        match activate {
            Some(activate) if takes(product) && activate.gate.is_none() => {
                matmul_few(cuda, matmul, activate.function, &activate.out)?;
            }
            _ => {
                step.run(matmul)?;
                activate.iter().try_for_each(|activate| step.run(activate))?;
            }
        }
    }
    op.conv.iter().try_for_each(|conv| step.run(conv))?;
    Ok(true)
}

/// Whether the kernels take the norm's operands, whose columns are a multiple of `unit`, and so many products.
pub(super) fn takes(op: &NormProducts<'_, Cuda>, unit: usize) -> bool {
    let norm = &op.norm;
    norm.out.dtype() == DType::BF16
        && norm.x.dtype() == DType::F32
        && norm.groups == 1
        && norm.x.cols().is_multiple_of(unit)
        && [&norm.x, &norm.out, &norm.weight].into_iter().all(in_pieces)
        && (1..=MOST).contains(&op.products.len())
}

/// Where a product goes and through which function.
pub(super) fn target<'p>(product: &'p Product<'_, Cuda>) -> (&'p Tensor<Cuda>, u32) {
    match &product.activate {
        Some(activate) => (&activate.out, function(activate.function)),
        None => (&product.matmul.out, 0),
    }
}

/// The convolution where the launch has not had it.
pub(super) fn rest(
    step: &Step<'_, Cuda>,
    op: &NormProducts<'_, Cuda>,
    done: Option<Conv>,
) -> Result<bool> {
    if let (Some(conv), None) = (&op.conv, done) {
        step.run(conv)?;
    }
    Ok(true)
}

/// Products that together have more groups than the device holds blocks share its blocks by their bytes.
fn share_blocks(resident: u32, weights: &[Product<'_, Cuda>], products: &mut [ProductArg]) {
    if products.iter().map(|product| product.groups).sum::<u32>() <= resident {
        return;
    }
    let bytes = weights.iter().map(|product| {
        let Weight { rows, cols, format, .. } = *product.matmul.weight;
        (format.data_bytes(rows, cols) + format.scale_bytes(rows, cols)) as u64
    });
    let total: u64 = bytes.clone().sum();
    for (product, bytes) in products.iter_mut().zip(bytes) {
        let share = (bytes * u64::from(resident)).div_ceil(total.max(1));
        product.blocks = u32::try_from(share).unwrap_or(resident).clamp(1, product.groups);
    }
}
