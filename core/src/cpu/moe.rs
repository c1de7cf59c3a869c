//! Products with chosen experts: pairs of one expert run as one product.

use super::matmul::{Inputs, Product};
use super::matrix::Matrix;
use super::pointwise::apply;
use super::{Cpu, parallel};
use crate::batch::to_usize;
use crate::ops::{ExpertInput, MoeCombine, MoeMatmul, Store, by_expert};

pub(super) fn moe_matmul(op: &MoeMatmul<'_, Cpu>) {
    let ids = op.ids.dense_u32();
    let (Some(x), Some(mut out)) = (op.x.f32_rows(), op.out.f32_rows_mut()) else {
        return op.reference();
    };
    let top_k = op.ids.cols();
    let (order, offsets) = by_expert(&ids, op.weight.experts);
    for (expert, bounds) in offsets.windows(2).enumerate() {
        let pairs = &order[to_usize(bounds[0])..to_usize(bounds[1])];
        if pairs.is_empty() {
            continue;
        }
        let row = |pair: &u32| match op.input {
            ExpertInput::Row => x.row(to_usize(*pair) / top_k),
            ExpertInput::Pair => x.row(to_usize(*pair)),
        };
        let inputs = Inputs::new(op.x.cols(), pairs.iter().map(row));
        let product = Product::new(&inputs, Matrix::of(op.weight, expert));
        for (index, pair) in pairs.iter().enumerate() {
            let out = out.row(to_usize(*pair));
            let mut rest = &mut *out;
            for run in product.row(index) {
                let (head, tail) = rest.split_at_mut(run.len());
                head.copy_from_slice(run);
                rest = tail;
            }
            apply(op.activation, out);
        }
    }
}

pub(super) fn moe_combine(op: &MoeCombine<Cpu>) {
    let (Some(mut out), [Some(x), Some(weights)]) =
        (op.out.f32_rows_mut(), [&op.x, &op.weights].map(|t| t.f32_rows()))
    else {
        return op.reference();
    };
    let top_k = op.weights.cols();
    let (work, store) = (op.x.rows() * op.x.cols(), op.store);
    parallel::each(work, out.rows().enumerate().collect(), |(row, out)| {
        let scale = match store {
            Store::Replace => {
                out.fill(0.0);
                1.0
            }
            Store::Accumulate { scale } => scale,
        };
        for (choice, weight) in weights.row(row).iter().enumerate() {
            let x = x.row(row * top_k + choice);
            out.iter_mut().zip(x).for_each(|(out, x)| *out += scale * weight * x);
        }
    });
}
