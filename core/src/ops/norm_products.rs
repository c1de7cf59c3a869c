//! Fused: `normed = rms_norm(x)`, then products of it, each through a function where it has one, then a convolution over
//! columns of the first.

use super::activate::{Activate, Activation};
use super::causal_conv1d::CausalConv1d;
use super::check;
use super::matmul::{Matmul, Store};
use super::norm_matmul::NormMatmul;
use super::rms_norm::RmsNorm;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Ragged, Rig, Tolerance};
use crate::error::Result;
use crate::step::{FusedOp, Op, Step};
use crate::tensor::DType;
use crate::weight::{Format, Weight};

/// One of the products.
pub struct Product<'a, B: Backend> {
    /// Reads the normed rows.
    pub matmul: Matmul<'a, B>,
    /// Reads what the product wrote, which is undefined afterwards.
    pub activate: Option<Activate<B>>,
}

/// A block's pre-norm with everything that only waits for it.
pub struct NormProducts<'a, B: Backend> {
    /// Norms the residual stream.
    pub norm: RmsNorm<B>,
    /// Whether something else reads the normed rows afterwards.
    pub keep: bool,
    /// In order.
    pub products: Vec<Product<'a, B>>,
    /// Reads columns of the first product's output.
    pub conv: Option<CausalConv1d<B>>,
}

impl<'a, B: Backend> NormProducts<'a, B> {
    /// The only product, where it is plain enough to run as a [`NormMatmul`].
    fn single(&self) -> Option<NormMatmul<'a, B>> {
        let [Product { matmul, activate: None }] = &self.products[..] else { return None };
        let plain =
            matmul.bias.is_none() && matmul.store == Store::Replace && self.norm.groups == 1;
        (plain && !self.keep).then(|| NormMatmul {
            x: self.norm.x.clone(),
            norm: self.norm.weight.clone(),
            eps: self.norm.eps,
            normed: self.norm.out.clone(),
            weight: matmul.weight,
            out: matmul.out.clone(),
        })
    }
}

impl<B: Backend> FusedOp<B> for NormProducts<'_, B> {
    const NAME: &'static str = "norm_products";

    fn check(&self) -> Result<()> {
        self.norm.check()?;
        for Product { matmul, activate } in &self.products {
            matmul.check()?;
            let same = B::same(matmul.x.buffer(), self.norm.out.buffer());
            check::ensure(Self::NAME, same, || {
                "a product reads other rows than the normed".into()
            })?;
            if let Some(activate) = activate {
                activate.check()?;
                let same = B::same(activate.x.buffer(), matmul.out.buffer());
                check::ensure(Self::NAME, same && activate.gate.is_none(), || {
                    "a function reads other rows than its product's, or a gate".into()
                })?;
            }
        }
        let Some(conv) = &self.conv else { return Ok(()) };
        let first = self.products.first().is_some_and(|first| {
            first.activate.is_none() && B::same(first.matmul.out.buffer(), conv.x.buffer())
        });
        check::ensure(Self::NAME, first, || "conv.x is no part of the first product".into())?;
        conv.check()
    }

    fn unfused(&self, step: &Step<'_, B>) -> Result<()> {
        if let Some(single) = self.single() {
            step.fused(&single)?;
        } else {
            step.run(&self.norm)?;
            for Product { matmul, activate } in &self.products {
                step.run(matmul)?;
                activate.iter().try_for_each(|activate| step.run(activate))?;
            }
        }
        self.conv.iter().try_for_each(|conv| step.run(conv))
    }

    fn encode(&self, step: &Step<'_, B>) -> Result<()> {
        step.backend().norm_products(step, self)
    }
}

/// What follows the norm.
pub(super) struct NormProductsCase {
    rows: usize,
    inputs: usize,
    /// Format and outputs of each product; every second one goes through a function, the third has a bias.
    products: Vec<(Format, usize)>,
    /// Width of a convolution over the middle of the first product.
    conv: Option<usize>,
    /// Neither functions nor a bias.
    plain: bool,
}

/// Formats alone and mixed, tile edges, few rows and many, biases, functions, each width of convolution.
pub(super) fn cases() -> Vec<NormProductsCase> {
    let mut cases = Vec::new();
    let case = |rows, inputs, products| NormProductsCase {
        rows,
        inputs,
        products,
        conv: None,
        plain: false,
    };
    for rows in [1, 2, 3, 4, 5, 8, 9, 16, 17, 40] {
        for format in Format::ALL {
            cases.push(case(rows, 320, vec![(format, 67)]));
        }
        cases.push(case(rows, 1088, vec![(Format::F32, 17), (Format::Nvfp4, 90)]));
        cases.push(case(rows, 576, vec![(Format::BF16, 9), (Format::BF16, 8), (Format::Fp8, 70)]));
    }
    cases.push(case(1, 2688, vec![(Format::F32, 128), (Format::Nvfp4, 3712)]));
    cases.push(case(1, 2688, vec![(Format::BF16, 300), (Format::BF16, 64), (Format::BF16, 64)]));
    for format in Format::ALL {
        let products = [67, 9, 40].map(|outputs| (format, outputs)).into();
        cases.push(NormProductsCase { plain: true, ..case(1, 320, products) });
    }
    // So many outputs that every part of a large device has several.
    for (rows, conv) in [(1, None), (4, Some(4))] {
        let products = vec![(Format::BF16, 8501), (Format::F32, 37)];
        cases.push(NormProductsCase { conv, ..case(rows, 72, products) });
    }
    for width in 2..=8 {
        let conv = Some(width);
        let products = vec![(Format::Nvfp4, 150)];
        cases.push(NormProductsCase { conv, ..case(4, 320, products) });
    }
    for format in [Format::F32, Format::F16, Format::BF16, Format::Fp8] {
        cases.push(NormProductsCase { conv: Some(4), ..case(4, 320, vec![(format, 150)]) });
    }
    cases
}

impl Case for NormProductsCase {
    fn name(&self) -> String {
        let Self { rows, inputs, products, conv, plain } = self;
        let list: Vec<_> = products.iter().map(|(f, outputs)| format!("{outputs} {f}")).collect();
        let conv = conv.map_or(String::new(), |width| format!(", convolution of {width}"));
        let plain = if *plain { ", as they come" } else { "" };
        format!("{rows} of {inputs} to {}{conv}{plain}", list.join(" and "))
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let (rows, inputs) = (self.rows, self.inputs);
        let dtype = rig.activations();
        // As in norm_matmul: narrow normed rows may be rounded the other way. A square doubles that; a window holds up
        // to eight such inputs, which are themselves rounded.
        let narrow = dtype != DType::F32;
        let tolerance = if narrow {
            Tolerance { absolute: 2e-2, relative: 8e-3 }
        } else {
            Tolerance::F32.scaled(10.0)
        };
        let x = rig.stream("x").values(Fill::Normal(3.0), rows * inputs);
        let norm = RmsNorm {
            x: rig.input_of("x", [rows, inputs], DType::F32, &x)?,
            weight: rig.param("norm", 1, inputs, Fill::NearOne(0.2))?,
            groups: 1,
            eps: 1e-5,
            out: rig.activation("normed", rows, inputs, Fill::Normal(1.0))?,
        };
        let weights: Vec<Weight<B>> = (self.products.iter().enumerate())
            .map(|(i, &(format, outputs))| {
                rig.weight(&format!("weight {i}"), 1, outputs, inputs, format)
            })
            .collect::<Result<_>>()?;
        let mut products = Vec::new();
        for (i, weight) in weights.iter().enumerate() {
            let name = format!("out {i}");
            // Router logits and the like are f32 whatever the rest is; a convolution takes what the rest is.
            let wide = weight.format == Format::F32 && self.conv.is_none();
            let kind = if wide { DType::F32 } else { dtype };
            let out = rig.output(&name, rows, weight.rows, kind, tolerance)?;
            let through = i % 2 == 1 && !self.plain;
            let raw = if through {
                rig.activation("raw", rows, weight.rows, Fill::Normal(1.0))?
            } else {
                out.clone()
            };
            let bias = (i == 2 && !self.plain)
                .then(|| rig.param("bias", 1, weight.rows, Fill::Normal(1.0)))
                .transpose()?;
            let matmul = Matmul {
                x: norm.out.clone(),
                weight,
                bias,
                store: Store::Replace,
                out: raw.clone(),
            };
            let activate =
                through.then(|| Activate { function: Activation::Relu2, x: raw, gate: None, out });
            products.push(Product { matmul, activate });
        }
        let conv = self.conv.map(|width| conv(rig, &products[0], width, tolerance)).transpose()?;
        rig.step().fused(&NormProducts { norm, keep: false, products, conv })
    }
}

/// A convolution over the middle columns of a product, one row a sequence.
fn conv<B: Backend>(
    rig: &Rig<'_, B>,
    product: &Product<'_, B>,
    width: usize,
    tolerance: Tolerance,
) -> Result<CausalConv1d<B>> {
    let ragged = Ragged::DECODE;
    let (rows, first, channels) = (ragged.rows(), 13, 100);
    let state =
        ragged.recurrent(&mut rig.stream("state"), Fill::Normal(1.0), channels * (width - 1));
    let shape = [ragged.slots * channels, width - 1];
    Ok(CausalConv1d {
        x: product.matmul.out.columns(first, channels),
        weight: rig.param("taps", channels, width, Fill::Normal(0.5))?,
        bias: Some(rig.param("conv bias", 1, channels, Fill::Normal(0.5))?),
        activation: Activation::Silu,
        state: rig.state_of("state", shape, DType::F32, &state, tolerance)?,
        segments: rig.segments(&ragged)?,
        out: rig.output("conv", rows, channels, rig.activations(), tolerance)?,
    })
}
