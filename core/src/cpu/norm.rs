//! Norms, row by row.

use super::Cpu;
use super::simd::{dot, silu};
use crate::ops::{GateOrder, GatedRmsNorm, RmsNorm};
use pulp::{Arch, Simd, WithSimd};

pub(super) fn rms_norm(op: &RmsNorm<Cpu>) {
    let (Some(x), Some(mut out)) = (op.x.f32_rows(), op.out.f32_rows_mut()) else {
        return op.reference();
    };
    let weight = op.weight.dense();
    let arch = Arch::new();
    for (row, out) in out.rows().enumerate() {
        out.copy_from_slice(x.row(row));
        arch.dispatch(Norm { row: out, weight: &weight, groups: op.groups, eps: op.eps });
    }
}

pub(super) fn gated_rms_norm(op: &GatedRmsNorm<Cpu>) {
    let (Some(mut out), [Some(y), Some(z)]) =
        (op.out.f32_rows_mut(), [&op.y, &op.z].map(|t| t.f32_rows()))
    else {
        return op.reference();
    };
    let weight = op.weight.dense();
    let arch = Arch::new();
    for (row, out) in out.rows().enumerate() {
        let gate = |out: &mut [f32]| {
            arch.dispatch(|| out.iter_mut().zip(z.row(row)).for_each(|(v, z)| *v *= silu(*z)));
        };
        out.copy_from_slice(y.row(row));
        if op.order == GateOrder::GateThenNorm {
            gate(out);
        }
        arch.dispatch(Norm { row: out, weight: &weight, groups: op.groups, eps: op.eps });
        if op.order == GateOrder::NormThenGate {
            gate(out);
        }
    }
}

/// One row, in place.
struct Norm<'a> {
    row: &'a mut [f32],
    weight: &'a [f32],
    groups: usize,
    eps: f32,
}

impl WithSimd for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = self.row.len() / self.groups;
        for (group, weight) in self.row.chunks_mut(width).zip(self.weight.chunks(width)) {
            let mean = dot(simd, group, group) / width as f32;
            let inverse = 1.0 / (mean + self.eps).sqrt();
            group.iter_mut().zip(weight).for_each(|(v, w)| *v *= inverse * w);
        }
    }
}
