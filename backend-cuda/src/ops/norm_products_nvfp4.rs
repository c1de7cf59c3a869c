//! A norm with the NVFP4 products, the router's product and the convolution that wait for it, as one launch for few rows.

use super::common_nvfp4::{Deal, MOST_ROWS, padded_rows, row_pitch, sums, takes};
use super::norm_products::{self, Conv, MOST, conv, rest, target};
use super::one;
use crate::cuda::Cuda;
use crate::view::{Bank, Window, bank, narrow, optional, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::{NormProducts, Product, Store};
use whipsnake_core::step::Step;
use whipsnake_core::weight::Format;

/// Up to this many rows every block norms for itself; from there on that costs more than a launch.
const NORMED_HERE: usize = 4;

/// Outputs of a tile, and of the F32 weight for a block: `MOST_PLAIN` of the kernel.
const TILE: usize = 16;
const MOST_PLAIN: usize = 2;

/// Eights of normed columns that a block leaves for others: `MOST_KEPT` of the kernel.
const MOST_KEPT: usize = 16;

/// Twin of `Product` in `kernels/norm_products_nvfp4.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ProductArg {
    weight: Bank,
    bias: u64,
    out: Window,
    function: u32,
    tiles: u32,
}

/// Twin of `NormProducts` in `kernels/norm_products_nvfp4.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Arguments {
    x: Window,
    normed: Window,
    gain: u64,
    eps: f32,
    rows: u32,
    keep: u32,
    plain: u32,
    conv: Conv,
    products: [ProductArg; MOST],
}

/// A product's part of the launch, where the kernel takes it.
fn argument(cuda: &Cuda, product: &Product<'_, Cuda>) -> Option<ProductArg> {
    let matmul = &product.matmul;
    let plain = matmul.weight.format == Format::F32;
    let fits = matmul.store == Store::Replace
        && (plain || takes(cuda, "norm_products_nvfp4", matmul.weight));
    let (out, activation) = target(product);
    fits.then(|| ProductArg {
        weight: bank(matmul.weight),
        bias: optional(matmul.bias.as_ref()),
        out: window(out),
        function: activation,
        tiles: if plain { 0 } else { narrow(matmul.weight.rows.div_ceil(TILE)) },
    })
}

/// Where the kernel's list has the F32 product, and how many outputs it has.
fn plain(op: &NormProducts<'_, Cuda>) -> Option<(usize, usize)> {
    let mut found = op.products.iter().enumerate().filter_map(|(place, product)| {
        let weight = product.matmul.weight;
        (weight.format == Format::F32).then_some((place, weight.rows))
    });
    let first = found.next();
    match found.next() {
        Some(_) => None,
        None => Some(first.unwrap_or((MOST, 0))),
    }
}

/// Runs the op where it has an NVFP4 product and the kernel takes all of it.
pub(super) fn norm_products_nvfp4(
    cuda: &Cuda,
    step: &Step<'_, Cuda>,
    op: &NormProducts<'_, Cuda>,
) -> Result<bool> {
    let norm = &op.norm;
    let [rows, cols] = norm.x.shape();
    let fits = rows <= MOST_ROWS && norm_products::takes(op, 64);
    let list: Option<Vec<_>> = op.products.iter().map(|product| argument(cuda, product)).collect();
    let (Some(list), Some((place, outputs)), true) = (list, plain(op), fits) else {
        return Ok(false);
    };
    let tiles = list.iter().map(|product| product.tiles as usize).sum();
    let share = cuda.multiprocessors().max(outputs.div_ceil(MOST_PLAIN));
    let deal = Deal::new(tiles, share);
    let spread = outputs.div_ceil(deal.blocks as usize) <= MOST_PLAIN;
    let fused_conv = op.conv.as_ref().and_then(|op_conv| conv(op_conv, &op.products[0].matmul));
    let extra = fused_conv.map_or(0, |conv| {
        16 * 4 * deal.runs * (conv.width + 1 + narrow(padded_rows(rows)) * (conv.width - 1))
    });
    let sums = sums([padded_rows(rows), TILE], deal.runs);
    let shape = deal.shape(cuda, padded_rows(rows), [row_pitch(TILE, cols), sums + extra]);
    let (Some(shape), true) = (shape, spread && tiles > 0) else { return Ok(false) };
    let kept = (cols / 8).div_ceil(deal.blocks as usize);
    let here = rows <= NORMED_HERE && (!op.keep || kept <= MOST_KEPT);
    if !here {
        step.run(norm)?;
    }
    let mut products = [ProductArg::zeroed(); MOST];
    products[..list.len()].copy_from_slice(&list);
    let arguments = Arguments {
        x: window(&norm.x),
        normed: window(&norm.out),
        gain: if here { pointer(&norm.weight) } else { 0 },
        eps: norm.eps,
        rows: narrow(rows),
        keep: u32::from(here && op.keep),
        plain: narrow(place),
        conv: fused_conv.unwrap_or_else(Conv::zeroed),
        products,
    };
    let name = format!("norm_products_nvfp4_{}", padded_rows(rows));
    cuda.launch_early("norm_products_nvfp4", &name, shape, &mut one(arguments))?;
    rest(step, op, fused_conv)
}
