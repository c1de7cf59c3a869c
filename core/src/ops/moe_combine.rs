//! `out[row] (+)= sum over choices of weights[row, choice] * x[row * top_k + choice]`, in f32.

use super::check;
use super::matmul::{Store, target};
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// The weighted sum of each row's experts.
pub struct MoeCombine<B: Backend> {
    /// Outputs of the pairs. `[rows * top_k, cols]`
    pub x: Tensor<B>,
    /// Weights of the pairs. `[rows, top_k] f32`
    pub weights: Tensor<B>,
    /// Replace the target or add to it.
    pub store: Store,
    /// Target. `[rows, cols]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for MoeCombine<B> {
    const NAME: &'static str = "moe_combine";

    fn check(&self) -> Result<()> {
        let [rows, top_k] = self.weights.shape();
        let cols = self.out.cols();
        check::activation(
            Self::NAME,
            "x",
            &self.x,
            [rows * top_k, cols],
            "rows * top_k, cols of out",
        )?;
        check::f32(Self::NAME, "weights", &self.weights, [rows, top_k], "rows, top_k")?;
        check::activation(Self::NAME, "out", &self.out, [rows, cols], "rows, cols")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("weights", &self.weights, Access::Read),
            Operand::Tensor("out", &self.out, self.store.access()),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.moe_combine(self)
    }
}

impl MoeCombine<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let top_k = self.weights.cols();
        let cols = self.out.cols();
        let (x, weights) = (self.x.dense(), self.weights.dense());
        let mut out = self.out.dense();
        for (row, target) in out.chunks_mut(cols).enumerate() {
            for (c, target) in target.iter_mut().enumerate() {
                let pairs = row * top_k..(row + 1) * top_k;
                let sum = pairs.map(|pair| weights[pair] * x[pair * cols + c]).sum();
                self.store.apply(target, sum);
            }
        }
        self.out.fill(&out);
    }
}

/// A shape and what happens to the target.
pub(super) struct MoeCombineCase {
    /// Rows, choices of each, columns.
    shape: [usize; 3],
    store: Store,
}

/// One choice and many, tile edges, both stores.
pub(super) fn cases() -> Vec<MoeCombineCase> {
    let shapes =
        [[1, 1, 1], [1, 6, 64], [3, 2, 65], [33, 8, 100], [2, 22, 1024], [65, 6, 48], [1, 6, 2688]];
    let mut cases = Vec::new();
    let stores =
        [Store::Replace, Store::Accumulate { scale: 1.0 }, Store::Accumulate { scale: -0.4 }];
    for store in stores {
        cases.extend(shapes.map(|shape| MoeCombineCase { shape, store }));
    }
    cases
}

impl Case for MoeCombineCase {
    fn name(&self) -> String {
        format!("{:?} {:?}", self.shape, self.store)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let [rows, top_k, cols] = self.shape;
        rig.step().run(&MoeCombine {
            x: rig.activation("x", rows * top_k, cols, Fill::Normal(1.0))?,
            weights: rig.param("weights", rows, top_k, Fill::Uniform(0.0, 2.5))?,
            store: self.store,
            out: target(rig, self.store, [rows, cols], Tolerance::F32)?,
        })
    }
}
