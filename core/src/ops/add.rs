//! `out += scale * x`, in place.

use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

/// Adds a scaled tensor to another.
pub struct Add<B: Backend> {
    /// What is added. `[rows, cols]`
    pub x: Tensor<B>,
    /// Multiplies `x`.
    pub scale: f32,
    /// What grows, in place. `[rows, cols]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for Add<B> {
    const NAME: &'static str = "add";

    fn check(&self) -> Result<()> {
        let shape = self.x.shape();
        check::activation(Self::NAME, "x", &self.x, shape, "rows, cols")?;
        check::activation(Self::NAME, "out", &self.out, shape, "shape of x")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("out", &self.out, Access::Update),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.add(self)
    }
}

impl Add<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let x = self.x.dense();
        let out: Vec<f32> =
            self.out.dense().iter().zip(&x).map(|(o, x)| o + self.scale * x).collect();
        self.out.fill(&out);
    }
}

/// Shapes at tile edges and of real models.
pub(super) const SHAPES: [[usize; 2]; 7] =
    [[1, 1], [1, 63], [3, 64], [2, 65], [17, 129], [1, 2688], [65, 768]];

/// A shape and a multiplier.
pub(super) struct AddCase {
    shape: [usize; 2],
    scale: f32,
}

/// Tile edges, the multipliers of families, nothing added.
pub(super) fn cases() -> Vec<AddCase> {
    let mut cases: Vec<_> = SHAPES.map(|shape| AddCase { shape, scale: 1.0 }).into();
    cases.extend([0.22, -3.0, 0.0].map(|scale| AddCase { shape: [3, 100], scale }));
    cases
}

impl Case for AddCase {
    fn name(&self) -> String {
        format!("{:?} scale {}", self.shape, self.scale)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let [rows, cols] = self.shape;
        let before = rig.stream("out").values(Fill::Normal(1.0), rows * cols);
        rig.step().run(&Add {
            x: rig.activation("x", rows, cols, Fill::Normal(1.0))?,
            scale: self.scale,
            out: rig.watched_of("out", rows, cols, DType::F32, &before, Tolerance::F32)?,
        })
    }
}
