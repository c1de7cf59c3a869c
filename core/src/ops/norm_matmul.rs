//! Fused: `normed = rms_norm(x)`, then `out = normed weight^T`.

use super::matmul::{Matmul, Store};
use super::rms_norm::RmsNorm;
use crate::backend::Backend;
use crate::error::Result;
use crate::step::{FusedOp, Op, Step};
use crate::tensor::Tensor;
use crate::weight::Weight;

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
