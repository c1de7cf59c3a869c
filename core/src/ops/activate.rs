//! `out = f(x)`, or `out = f(gate) * x` for gated pairs.

use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// A pointwise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x`.
    Identity,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `max(0, x)^2`.
    Relu2,
    /// `x * (1 + erf(x / sqrt 2)) / 2`, the exact form.
    Gelu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl Activation {
    /// The definition.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::Identity => x,
            Self::Silu => silu(x),
            Self::Relu2 => x.max(0.0) * x.max(0.0),
            Self::Gelu => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::Sigmoid => sigmoid(x),
        }
    }
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x / (1 + exp(-x))`.
pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// Error function by Abramowitz and Stegun 7.1.26 evaluated in f64: absolute error below 1.5e-7.
fn erf(x: f32) -> f32 {
    let v = f64::from(x.abs());
    let t = 1.0 / (1.0 + 0.327_591_1 * v);
    let poly = t
        * (0.254_829_592
            + t * (-0.284_496_736
                + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    let y = 1.0 - poly * (-v * v).exp();
    (if x < 0.0 { -y } else { y }) as f32
}

/// Applies a pointwise function, in f32.
pub struct Activate<B: Backend> {
    /// The function.
    pub function: Activation,
    /// Input. `[rows, cols]`
    pub x: Tensor<B>,
    /// What the function is applied to instead of `x`, which it then multiplies. `[rows, cols]`
    pub gate: Option<Tensor<B>>,
    /// Output. `[rows, cols]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for Activate<B> {
    const NAME: &'static str = "activate";

    fn check(&self) -> Result<()> {
        let shape = self.x.shape();
        check::activation(Self::NAME, "x", &self.x, shape, "rows, cols")?;
        if let Some(gate) = &self.gate {
            check::activation(Self::NAME, "gate", gate, shape, "shape of x")?;
        }
        check::activation(Self::NAME, "out", &self.out, shape, "shape of x")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        let mut list = vec![Operand::Tensor("x", &self.x, Access::Read)];
        list.extend(self.gate.iter().map(|g| Operand::Tensor("gate", g, Access::Read)));
        list.push(Operand::Tensor("out", &self.out, Access::Write));
        list
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.activate(self)
    }
}

impl Activate<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let x = self.x.dense();
        let out: Vec<f32> = match &self.gate {
            None => x.iter().map(|&v| self.function.apply(v)).collect(),
            Some(gate) => {
                gate.dense().iter().zip(&x).map(|(&g, v)| self.function.apply(g) * v).collect()
            }
        };
        self.out.fill(&out);
    }
}

/// A function, a shape and numbers.
pub(super) struct ActivateCase {
    function: Activation,
    gated: bool,
    shape: [usize; 2],
    fill: Fill,
}

/// Every function alone and gated, tile edges, and arguments whose exponentials overflow.
pub(super) fn cases() -> Vec<ActivateCase> {
    use Activation::{Gelu, Identity, Relu2, Sigmoid, Silu};
    let shapes = [[1, 1], [1, 63], [3, 64], [2, 65], [5, 129], [2, 2049], [64, 1856]];
    let mut cases = Vec::new();
    for function in [Identity, Silu, Relu2, Gelu, Sigmoid] {
        for gated in [false, true] {
            let case = |shape, fill| ActivateCase { function, gated, shape, fill };
            cases.extend(shapes.map(|shape| case(shape, Fill::Normal(1.5))));
            cases.push(case([2, 300], Fill::Uniform(-120.0, 120.0)));
            cases.push(case([1, 32], Fill::Constant(-100.0)));
            cases.push(case([1, 32], Fill::Constant(0.0)));
        }
    }
    cases
}

impl Case for ActivateCase {
    fn name(&self) -> String {
        let gated = if self.gated { "gated " } else { "" };
        format!("{gated}{:?} {:?} {:?}", self.function, self.shape, self.fill)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let [rows, cols] = self.shape;
        let gate = self.gated.then(|| rig.activation("gate", rows, cols, self.fill)).transpose()?;
        rig.step().run(&Activate {
            function: self.function,
            x: rig.activation("x", rows, cols, self.fill)?,
            gate,
            out: rig.output("out", rows, cols, rig.activations(), Tolerance::F32)?,
        })
    }
}
