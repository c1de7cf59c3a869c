//! `out = x weight^T + bias`, or `out += scale * (x weight^T + bias)`.

use super::check;
use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;
use crate::weight::Weight;

/// What happens to the target of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Store {
    /// The target is overwritten; what it held is never read.
    Replace,
    /// The target, a residual stream, grows by `scale` times the result.
    Accumulate {
        /// Residual multiplier of the family, 1 for most.
        scale: f32,
    },
}

impl Store {
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Replace => Access::Write,
            Self::Accumulate { .. } => Access::Update,
        }
    }

    pub(crate) fn apply(self, target: &mut f32, value: f32) {
        match self {
            Self::Replace => *target = value,
            Self::Accumulate { scale } => *target += scale * value,
        }
    }
}

/// A linear layer. Products are accumulated in f32 from the weight's stored form, never from a widened copy.
pub struct Matmul<'a, B: Backend> {
    /// Input. `[rows, inputs]`
    pub x: Tensor<B>,
    /// Weight, of any format. `[outputs, inputs]`
    pub weight: &'a Weight<B>,
    /// Added to every row. `[1, outputs] f32`
    pub bias: Option<Tensor<B>>,
    /// Replace the target or add to it.
    pub store: Store,
    /// Target. `[rows, outputs]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for Matmul<'_, B> {
    const NAME: &'static str = "matmul";

    fn check(&self) -> Result<()> {
        let [rows, inputs] = self.x.shape();
        let outputs = self.out.cols();
        check::activation(Self::NAME, "x", &self.x, [rows, inputs], "rows, inputs")?;
        check::weight(
            Self::NAME,
            "weight",
            self.weight,
            [1, outputs, inputs],
            "1, cols of out, cols of x",
        )?;
        if let Some(bias) = &self.bias {
            check::f32(Self::NAME, "bias", bias, [1, outputs], "1, outputs")?;
        }
        check::activation(Self::NAME, "out", &self.out, [rows, outputs], "rows of x, outputs")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        let mut list = vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Weight("weight", self.weight),
        ];
        list.extend(self.bias.iter().map(|b| Operand::Tensor("bias", b, Access::Read)));
        list.push(Operand::Tensor("out", &self.out, self.store.access()));
        list
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.matmul(self)
    }
}

impl Matmul<'_, Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let [rows, inputs] = self.x.shape();
        let outputs = self.out.cols();
        let x = self.x.dense();
        let bias = self.bias.as_ref().map(Tensor::dense);
        let mut out = self.out.dense();
        for o in 0..outputs {
            let weight = self.weight.row(0, o);
            for r in 0..rows {
                let product =
                    dot(&x[r * inputs..][..inputs], &weight) + bias.as_ref().map_or(0.0, |b| b[o]);
                self.store.apply(&mut out[r * outputs + o], product);
            }
        }
        self.out.fill(&out);
    }
}

/// Inner product with an f64 accumulator: the order of a back end's own sum then costs it, not the reference.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}
