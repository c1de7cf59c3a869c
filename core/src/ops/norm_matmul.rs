//! Fused: `normed = rms_norm(x)`, then `out = normed weight^T`.

use super::matmul::{Matmul, Store};
use super::rms_norm::RmsNorm;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::error::Result;
use crate::step::{FusedOp, Op, Step};
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, Weight};

/// A block's pre-norm with the product that follows it.
pub struct NormMatmul<'a, B: Backend> {
    /// Residual stream. `[rows, inputs] f32`
    pub x: Tensor<B>,
    /// Gain of the norm. `[1, inputs] f32`
    pub norm: Tensor<B>,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Holds the normed rows where the two run apart; undefined afterwards. `[rows, inputs]`
    pub normed: Tensor<B>,
    /// Weight, of any format. `[outputs, inputs]`
    pub weight: &'a Weight<B>,
    /// Output. `[rows, outputs]`
    pub out: Tensor<B>,
}

impl<'a, B: Backend> NormMatmul<'a, B> {
    /// The primitive ops it stands for.
    fn parts(&self) -> (RmsNorm<B>, Matmul<'a, B>) {
        let norm = RmsNorm {
            x: self.x.clone(),
            weight: self.norm.clone(),
            groups: 1,
            eps: self.eps,
            out: self.normed.clone(),
        };
        let product = Matmul {
            x: self.normed.clone(),
            weight: self.weight,
            bias: None,
            store: Store::Replace,
            out: self.out.clone(),
        };
        (norm, product)
    }
}

impl<B: Backend> FusedOp<B> for NormMatmul<'_, B> {
    const NAME: &'static str = "norm_matmul";

    fn check(&self) -> Result<()> {
        let (norm, product) = self.parts();
        norm.check()?;
        product.check()
    }

    fn unfused(&self, step: &Step<'_, B>) -> Result<()> {
        let (norm, product) = self.parts();
        step.run(&norm)?;
        step.run(&product)
    }

    fn encode(&self, step: &Step<'_, B>) -> Result<()> {
        step.backend().norm_matmul(step, self)
    }
}

/// A shape and a weight format.
pub(super) struct NormMatmulCase {
    /// Rows, outputs, inputs.
    shape: [usize; 3],
    format: Format,
}

/// Every format at decode and prefill shapes: an override gives what the two ops give.
pub(super) fn cases() -> Vec<NormMatmulCase> {
    let shapes = [[1, 65, 48], [3, 64, 256], [17, 33, 80], [70, 130, 112], [1, 40, 2688]];
    let format = |format| shapes.map(|shape| NormMatmulCase { shape, format });
    Format::ALL.into_iter().flat_map(format).collect()
}

impl Case for NormMatmulCase {
    fn name(&self) -> String {
        format!("{:?} {}", self.shape, self.format)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let [rows, outputs, inputs] = self.shape;
        let x = rig.stream("x").values(Fill::Normal(3.0), rows * inputs);
        let narrow = rig.activations() != DType::F32;
        // Narrow normed rows may be rounded the other way from the reference's, or not at all where the two run as one:
        // half a step of 2^-8 on each term, of random sign, is 2^-9 of the result's size of 1; four times for the largest.
        let tolerance = if narrow { Tolerance::F32.scaled(400.0) } else { Tolerance::F32 };
        rig.step().fused(&NormMatmul {
            x: rig.input_of("x", [rows, inputs], DType::F32, &x)?,
            norm: rig.param("norm", 1, inputs, Fill::NearOne(0.2))?,
            eps: 1e-5,
            normed: rig.activation("normed", rows, inputs, Fill::Normal(1.0))?,
            weight: &rig.weight("weight", 1, outputs, inputs, self.format)?,
            out: rig.output("out", rows, outputs, rig.activations(), tolerance)?,
        })
    }
}
