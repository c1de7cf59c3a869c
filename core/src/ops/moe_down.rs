//! Fused: the chosen experts' second product, its weighted sum, and the shared expert's second product.

use super::activate::Activation;
use super::check;
use super::matmul::{Matmul, Store, target};
use super::moe_combine::MoeCombine;
use super::moe_group::{Choices, sorted};
use super::moe_matmul::{ExpertInput, MoeMatmul};
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig, Tolerance};
use crate::error::Result;
use crate::step::{FusedOp, Op, Step};
use crate::tensor::DType;
use crate::weight::Format;

/// The second half of a mixture of experts.
pub struct MoeDown<'a, B: Backend> {
    /// Its output is undefined afterwards.
    pub down: MoeMatmul<'a, B>,
    /// Reads the product.
    pub combine: MoeCombine<B>,
    /// The shared expert, which adds to the same target.
    pub shared: Option<Matmul<'a, B>>,
}

impl<B: Backend> FusedOp<B> for MoeDown<'_, B> {
    const NAME: &'static str = "moe_down";

    fn check(&self) -> Result<()> {
        self.down.check()?;
        self.combine.check()?;
        let same = B::same(self.down.out.buffer(), self.combine.x.buffer());
        check::ensure(Self::NAME, same, || "the sum reads other rows than the product's".into())?;
        let Some(shared) = &self.shared else { return Ok(()) };
        shared.check()?;
        let same = B::same(shared.out.buffer(), self.combine.out.buffer());
        let grows = matches!(shared.store, Store::Accumulate { .. });
        check::ensure(Self::NAME, same && grows, || "shared does not add to the target".into())
    }

    fn unfused(&self, step: &Step<'_, B>) -> Result<()> {
        step.run(&self.down)?;
        step.run(&self.combine)?;
        self.shared.iter().try_for_each(|shared| step.run(shared))
    }

    fn encode(&self, step: &Step<'_, B>) -> Result<()> {
        step.backend().moe_down(step, self)
    }
}

/// The shape of both products.
pub(super) struct MoeDownCase {
    /// Rows, choices of each, experts.
    choices: [usize; 3],
    /// Outputs, inputs.
    sizes: [usize; 2],
    format: Format,
    /// Inputs and format of the shared expert.
    shared: Option<(usize, Format)>,
    store: Store,
    /// Whether the pairs are sorted by expert.
    grouped: bool,
}

/// Every format, with and without a shared expert of the same or another; more choices than warps; a real model's shape.
pub(super) fn cases() -> Vec<MoeDownCase> {
    let accumulate = Store::Accumulate { scale: 1.0 };
    let mut cases = Vec::new();
    for format in Format::ALL {
        for (choices, shared) in [
            ([1, 6, 8], Some((192, format))),
            ([2, 2, 3], None),
            ([3, 9, 12], Some((64, Format::BF16))),
            ([9, 2, 4], Some((128, format))),
        ] {
            cases.push(MoeDownCase {
                choices,
                sizes: [43, 128],
                format,
                shared,
                store: accumulate,
                grouped: false,
            });
        }
        let (choices, store) = ([2, 3, 4], Store::Replace);
        let sizes = [16, 320];
        cases.push(MoeDownCase { choices, sizes, format, shared: None, store, grouped: false });
    }
    let scaled = Store::Accumulate { scale: 0.22 };
    let nano = MoeDownCase {
        choices: [1, 6, 8],
        sizes: [88, 1856],
        format: Format::Nvfp4,
        shared: Some((3712, Format::Nvfp4)),
        store: scaled,
        grouped: false,
    };
    cases.push(nano);
    // Sorted pairs beside a shared expert as wide as one of them, as several, and as one and a half; some rows and more.
    let grouped = [
        ([9, 2, 4], [48, 128], 256),
        ([13, 3, 8], [80, 192], 192),
        ([16, 2, 16], [304, 64], 192),
        ([17, 2, 16], [64, 64], 128),
        ([12, 2, 4], [32, 128], 192),
    ];
    cases.extend(grouped.map(|(choices, sizes, width)| MoeDownCase {
        choices,
        sizes,
        format: Format::Nvfp4,
        shared: Some((width, Format::Nvfp4)),
        store: scaled,
        grouped: true,
    }));
    cases
}

impl Case for MoeDownCase {
    fn name(&self) -> String {
        let Self { choices, sizes, format, shared, store, grouped } = self;
        let grouped = if *grouped { ", grouped" } else { "" };
        format!("{choices:?} {sizes:?} {format}, shared {shared:?}, {store:?}{grouped}")
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let ([rows, top_k, experts], [outputs, inputs]) = (self.choices, self.sizes);
        let dtype = rig.activations();
        let count = u32::try_from(experts).unwrap_or(u32::MAX);
        let ids = Choices::Spread.draw(&mut rig.stream("ids"), [rows, top_k], count);
        // Narrow outputs of the pairs are rounded, or not at all where they are summed at once: half a step of 2^-8 of
        // values up to 5, by weights whose squares sum to 3.
        let narrow = dtype != DType::F32;
        let tolerance =
            if narrow { Tolerance::F32.scaled(2000.0) } else { Tolerance::F32.scaled(10.0) };
        let groups = sorted(rig, &ids, experts)?;
        let pairs = rig.activation("pairs", rows * top_k, outputs, Fill::Normal(1.0))?;
        let out = target(rig, self.store, [rows, outputs], tolerance)?;
        let down = MoeMatmul {
            x: rig.activation("x", rows * top_k, inputs, Fill::Normal(1.0))?,
            input: ExpertInput::Pair,
            weight: &rig.weight("weight", experts, outputs, inputs, self.format)?,
            ids: rig.table("ids", rows, top_k, &ids)?,
            groups: self.grouped.then_some(groups),
            activation: Activation::Identity,
            out: pairs.clone(),
        };
        let weights = rig.param("weights", rows, top_k, Fill::Uniform(0.1, 1.0))?;
        let combine = MoeCombine { x: pairs, weights, store: self.store, out: out.clone() };
        let weight = match self.shared {
            Some((width, format)) => Some(rig.weight("shared", 1, outputs, width, format)?),
            None => None,
        };
        let shared = weight.as_ref().map(|weight| {
            let x = rig.activation("shared x", rows, weight.cols, Fill::Normal(1.0))?;
            Ok(Matmul { x, weight, bias: None, store: self.store, out: out.clone() })
        });
        rig.step().fused(&MoeDown { down, combine, shared: shared.transpose()? })
    }
}
