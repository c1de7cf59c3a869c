//! `out = x weight^T + bias`, or `out += scale * (x weight^T + bias)`.

use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, Weight};

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

/// A shape, a weight format and what happens to the target.
pub(super) struct MatmulCase {
    /// Rows, outputs, inputs.
    shape: [usize; 3],
    format: Format,
    bias: bool,
    store: Store,
    fill: Fill,
}

/// Rows, outputs and inputs: multiples of 16, as NVFP4 wants, but mostly of nothing larger; the last has so many outputs that
/// every part of a large device has several.
const SHAPES: [[usize; 3]; 24] = [
    [1, 1, 16],
    [1, 15, 32],
    [2, 16, 48],
    [3, 17, 64],
    [4, 31, 80],
    [7, 63, 128],
    [8, 64, 144],
    [9, 65, 240],
    [15, 127, 256],
    [16, 128, 272],
    [17, 129, 112],
    [31, 33, 16],
    [33, 48, 96],
    [64, 130, 208],
    [65, 64, 64],
    [129, 40, 48],
    [300, 24, 32],
    [200, 132, 192],
    [520, 48, 64],
    [1030, 20, 128],
    [1, 96, 2688],
    [9, 40, 1856],
    [1, 513, 256],
    [1, 8500, 64],
];

/// The same for formats that take any number of inputs.
const ODD: [[usize; 3]; 7] = [
    [1, 5, 1],
    [2, 3, 7],
    [3, 17, 33],
    [6, 65, 127],
    [40, 64, 129],
    [1, 40, 1001],
    [3, 12_801, 72],
];

/// Every format at tile edges in all three directions and at widths of real models; bias; accumulation; large values.
pub(super) fn cases() -> Vec<MatmulCase> {
    let mut cases = Vec::new();
    for format in Format::ALL {
        let case = |shape| MatmulCase {
            shape,
            format,
            bias: false,
            store: Store::Replace,
            fill: Fill::Normal(1.0),
        };
        cases.extend(SHAPES.map(case));
        if format != Format::Nvfp4 {
            cases.extend(ODD.map(case));
        }
        // What products in narrower formats take, where they are asked for.
        if matches!(format, Format::Nvfp4 | Format::Fp8) {
            let shape = [530, 80, 272];
            cases.extend([[512, 64, 128], [600, 144, 192]].map(case));
            cases.push(MatmulCase { fill: Fill::Normal(1e3), ..case(shape) });
            cases.push(MatmulCase { store: Store::Accumulate { scale: 0.22 }, ..case(shape) });
            cases.push(MatmulCase { bias: true, ..case(shape) });
        }
        for shape in [[1, 65, 48], [5, 33, 80], [70, 72, 96], [90, 68, 128], [140, 72, 96]] {
            let accumulate = Store::Accumulate { scale: 0.22 };
            cases.push(MatmulCase { bias: true, ..case(shape) });
            cases.push(MatmulCase { store: Store::Accumulate { scale: 1.0 }, ..case(shape) });
            cases.push(MatmulCase { bias: true, store: accumulate, ..case(shape) });
            cases.push(MatmulCase { fill: Fill::Normal(1e3), ..case(shape) });
        }
    }
    cases
}

impl Case for MatmulCase {
    fn name(&self) -> String {
        let Self { shape, format, bias, store, fill } = self;
        let bias = if *bias { " bias" } else { "" };
        format!("{shape:?} {format}{bias} {store:?} {fill:?}")
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let [rows, outputs, inputs] = self.shape;
        let size = if let Fill::Normal(size) = self.fill { size } else { 1.0 };
        let bias =
            self.bias.then(|| rig.param("bias", 1, outputs, Fill::Normal(1.0))).transpose()?;
        let tolerance = Tolerance::F32.scaled(size);
        let op = Matmul {
            x: rig.activation("x", rows, inputs, self.fill)?,
            weight: &rig.weight("weight", 1, outputs, inputs, self.format)?,
            bias,
            store: self.store,
            out: target(rig, self.store, [rows, outputs], tolerance)?,
        };
        rig.allow_rounding(rig.backend().rounding(&op));
        rig.step().run(&op)
    }
}

/// The target of a product: an activation that is replaced, or an f32 residual stream that grows.
pub(super) fn target<B: Backend>(
    rig: &Rig<'_, B>,
    store: Store,
    [rows, cols]: [usize; 2],
    tolerance: Tolerance,
) -> Result<Tensor<B>> {
    match store {
        Store::Replace => rig.output("out", rows, cols, rig.activations(), tolerance),
        Store::Accumulate { .. } => {
            let before = rig.stream("out").values(Fill::Normal(1.0), rows * cols);
            rig.watched_of("out", rows, cols, DType::F32, &before, tolerance)
        }
    }
}
