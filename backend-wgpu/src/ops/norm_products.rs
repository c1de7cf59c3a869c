//! A norm with the products and the convolution that wait for it: a dispatch a product where rows are few.

use super::norm_matmul::{Normed, rides, siblings, takes_conv};
use crate::Wgpu;
use whipsnake_core::error::Result;
use whipsnake_core::ops::NormProducts;
use whipsnake_core::step::{FusedOp, Step};

pub(crate) fn encode(step: &Step<'_, Wgpu>, op: &NormProducts<'_, Wgpu>) -> Result<()> {
    let gpu = step.backend();
    let conv = op.conv.as_ref();
    let inside = |conv| op.products.first().is_some_and(|p| takes_conv(gpu, conv, &p.matmul));
    let fused = conv.filter(|conv| inside(conv));
    let (rider, rest) = match &op.products[..] {
        [rider, with, ..] if conv.is_none() && rides(gpu, rider, with) => {
            (Some(&rider.matmul), &op.products[1..])
        }
        all => (None, all),
    };
    let siblings = siblings(gpu, rest).filter(|_| conv.is_none() && rider.is_none() && !op.keep);
    let rest = if siblings.is_some() { &rest[..1] } else { rest };
    let products: Option<Vec<_>> = (rest.iter().enumerate())
        .map(|(index, product)| {
            let one = Normed {
                norm: &op.norm,
                matmul: &product.matmul,
                activate: product.activate.as_ref(),
                conv: fused.filter(|_| index == 0),
                rider: rider.filter(|_| index == 0),
                siblings: siblings.filter(|_| index == 0),
                keep: op.keep && index == 0,
            };
            one.unit(gpu).map(|unit| (one, unit))
        })
        .collect();
    let Some(products) = products.filter(|list| !list.is_empty()) else {
        return op.unfused(step);
    };
    products.iter().try_for_each(|(one, unit)| one.encode(gpu, *unit))?;
    match conv {
        Some(conv) if fused.is_none() => step.run(conv),
        _ => Ok(()),
    }
}
