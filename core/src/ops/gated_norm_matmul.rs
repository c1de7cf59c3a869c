//! Fused: a Mamba2 mixer's gated norm, then the product that closes it.

use super::check;
use super::gated_rms_norm::{GateOrder, GatedRmsNorm};
use super::matmul::{Matmul, Store, target};
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::error::Result;
use crate::step::{FusedOp, Op, Step};
use crate::tensor::DType;
use crate::weight::Format;

/// The end of a Mamba2 mixer.
pub struct GatedNormMatmul<'a, B: Backend> {
    /// Its output is undefined afterwards.
    pub norm: GatedRmsNorm<B>,
    /// Reads the normed rows.
    pub matmul: Matmul<'a, B>,
}

impl<B: Backend> FusedOp<B> for GatedNormMatmul<'_, B> {
    const NAME: &'static str = "gated_norm_matmul";

    fn check(&self) -> Result<()> {
        self.norm.check()?;
        self.matmul.check()?;
        let same = B::same(self.norm.out.buffer(), self.matmul.x.buffer());
        check::ensure(Self::NAME, same, || "the product reads other rows than the normed".into())
    }

    fn unfused(&self, step: &Step<'_, B>) -> Result<()> {
        step.run(&self.norm)?;
        step.run(&self.matmul)
    }

    fn encode(&self, step: &Step<'_, B>) -> Result<()> {
        step.backend().gated_norm_matmul(step, self)
    }
}

/// A shape, its groups, a format and what happens to the target.
pub(super) struct GatedNormMatmulCase {
    /// Rows, outputs, inputs.
    shape: [usize; 3],
    groups: usize,
    order: GateOrder,
    format: Format,
    store: Store,
}

/// Every format and both orders; one group and many; few rows and more; a real model's shape.
pub(super) fn cases() -> Vec<GatedNormMatmulCase> {
    let orders = [GateOrder::GateThenNorm, GateOrder::NormThenGate];
    let accumulate = Store::Accumulate { scale: 0.5 };
    let mut cases = Vec::new();
    for format in Format::ALL {
        for (order, store) in orders.into_iter().zip([accumulate, Store::Replace]) {
            for (shape, groups) in [
                ([1, 65, 256], 4),
                ([3, 24, 96], 1),
                ([2, 9, 1088], 2),
                ([9, 40, 128], 8),
                ([2, 31, 80], 5),
            ] {
                cases.push(GatedNormMatmulCase { shape, groups, order, format, store });
            }
        }
    }
    let (shape, order) = ([1, 2688, 4096], GateOrder::GateThenNorm);
    cases.push(GatedNormMatmulCase {
        shape,
        groups: 8,
        order,
        format: Format::Nvfp4,
        store: accumulate,
    });
    cases
}

impl Case for GatedNormMatmulCase {
    fn name(&self) -> String {
        let Self { shape, groups, order, format, store } = self;
        format!("{shape:?} in {groups} groups {order:?} {format} {store:?}")
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let [rows, outputs, inputs] = self.shape;
        // As in norm_matmul; a gate after the norm makes terms of the product as large as 3.
        let narrow = rig.activations() != DType::F32;
        let tolerance =
            if narrow { Tolerance::F32.scaled(800.0) } else { Tolerance::F32.scaled(3.0) };
        let normed = rig.activation("normed", rows, inputs, Fill::Normal(1.0))?;
        let norm = GatedRmsNorm {
            y: rig.activation("y", rows, inputs, Fill::Normal(2.0))?,
            z: rig.activation("z", rows, inputs, Fill::Normal(1.0))?,
            weight: rig.param("norm", 1, inputs, Fill::NearOne(0.2))?,
            groups: self.groups,
            eps: 1e-5,
            order: self.order,
            out: normed.clone(),
        };
        let matmul = Matmul {
            x: normed,
            weight: &rig.weight("weight", 1, outputs, inputs, self.format)?,
            bias: Some(rig.param("bias", 1, outputs, Fill::Normal(1.0))?),
            store: self.store,
            out: target(rig, self.store, [rows, outputs], tolerance)?,
        };
        rig.step().fused(&GatedNormMatmul { norm, matmul })
    }
}
