//! Ops on elements and whole rows.

use super::simd::{sigmoid, silu};
use super::{Cpu, parallel};
use crate::batch::to_usize;
use crate::ops::{Activate, Activation, Add, Argmax, Scale, SelectRows};
use pulp::Arch;

pub(super) fn activate(op: &Activate<Cpu>) {
    let (Some(x), Some(mut out)) = (op.x.f32_rows(), op.out.f32_rows_mut()) else {
        return op.reference();
    };
    let gate = op.gate.as_ref().map(|g| g.f32_rows());
    if matches!(gate, Some(None)) {
        drop((x, out));
        return op.reference();
    }
    let gate = gate.flatten();
    // An exponential and a division are worth about 16 multiply-adds.
    let (work, function) = (16 * op.x.rows() * op.x.cols(), op.function);
    parallel::each(work, out.rows().enumerate().collect(), |(row, out)| {
        let x = x.row(row);
        match &gate {
            None => {
                out.copy_from_slice(x);
                apply(function, out);
            }
            Some(gate) => {
                out.copy_from_slice(gate.row(row));
                apply(function, out);
                out.iter_mut().zip(x).for_each(|(v, x)| *v *= x);
            }
        }
    });
}

/// A pointwise function in place.
pub(super) fn apply(function: Activation, row: &mut [f32]) {
    let arch = Arch::new();
    match function {
        Activation::Identity => {}
        Activation::Silu => arch.dispatch(|| row.iter_mut().for_each(|v| *v = silu(*v))),
        Activation::Sigmoid => arch.dispatch(|| row.iter_mut().for_each(|v| *v = sigmoid(*v))),
        Activation::Relu2 => row.iter_mut().for_each(|v| *v = v.max(0.0) * v.max(0.0)),
        Activation::Gelu => row.iter_mut().for_each(|v| *v = function.apply(*v)),
    }
}

pub(super) fn add(op: &Add<Cpu>) {
    let (Some(x), Some(mut out)) = (op.x.f32_rows(), op.out.f32_rows_mut()) else {
        return op.reference();
    };
    for (row, out) in out.rows().enumerate() {
        out.iter_mut().zip(x.row(row)).for_each(|(out, x)| *out += op.scale * x);
    }
}

pub(super) fn scale(op: &Scale<Cpu>) {
    let Some(mut x) = op.x.f32_rows_mut() else { return op.reference() };
    x.rows().for_each(|row| row.iter_mut().for_each(|v| *v *= op.factor));
}

pub(super) fn select_rows(op: &SelectRows<Cpu>) {
    let indices = op.indices.dense_u32();
    let (Some(x), Some(mut out)) = (op.x.f32_rows(), op.out.f32_rows_mut()) else {
        return op.reference();
    };
    for (out, index) in out.rows().zip(indices) {
        out.copy_from_slice(x.row(to_usize(index)));
    }
}

pub(super) fn argmax(op: &Argmax<Cpu>) {
    let Some(x) = op.x.f32_rows() else { return op.reference() };
    let arch = Arch::new();
    let best = |row: usize| {
        let row = x.row(row);
        // The largest value of each block, then its place: the first pass vectorises.
        let largest = arch.dispatch(|| {
            let (blocks, rest) = row.as_chunks::<32>();
            let mut lanes = [f32::NEG_INFINITY; 32];
            for block in blocks {
                lanes.iter_mut().zip(block).for_each(|(lane, v)| *lane = lane.max(*v));
            }
            lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
        });
        // A column index of an f32 row in memory fits u32.
        row.iter().position(|v| *v == largest).unwrap_or(0) as u32
    };
    op.out.fill_u32(&(0..op.x.rows()).map(best).collect::<Vec<_>>());
}
