//! Layers in a row, one token, in one step that is run, recorded and replayed: what a back end makes of ops that follow
//! each other, beyond each op by itself.

use super::fill::Fill;
use super::ragged::Ragged;
use super::rig::Rig;
use super::watched::Tolerance;
use super::{Case, laws};
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{
    Activate, Activation, CausalConv1d, ExpertInput, GateOrder, GatedNormMatmul, GatedRmsNorm,
    Matmul, MoeCombine, MoeDown, MoeMatmul, MoeRoute, MoeUp, NormProducts, Product, RmsNorm,
    RouteRule, Score, SsmScan, Store,
};
use crate::step::Step;
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, Weight};

/// A Mamba2 layer and one of experts, and both again with the same weights.
pub(super) struct LayersCase {
    format: Format,
    /// Of the residual stream.
    width: usize,
    /// Heads, width of one, state, groups.
    mixer: [usize; 4],
    /// Experts, choices, width of one.
    experts: [usize; 3],
    /// Width of the shared expert.
    shared: Option<usize>,
}

/// Every format, with and without a shared expert, widths that fill no whole tile.
pub(super) fn cases() -> Vec<LayersCase> {
    let mut cases = Vec::new();
    let case = |format, shared| LayersCase {
        format,
        width: 320,
        mixer: [4, 32, 64, 2],
        experts: [9, 3, 64],
        shared,
    };
    for format in Format::ALL {
        cases.push(case(format, Some(448)));
        cases.push(case(format, None));
    }
    let wide = LayersCase {
        width: 1344,
        mixer: [16, 64, 128, 8],
        experts: [12, 6, 128],
        ..case(Format::Nvfp4, Some(640))
    };
    cases.push(wide);
    cases
}

const TAPS: usize = 4;
const STEPS: usize = 3;
const BATCH: Ragged = Ragged { slots: 2, context: 8, list: &[(1, 1, 3)], padding: 0 };
// Little of each layer joins the stream, so that what rounding does in one hardly grows in the next.
const STORE: Store = Store::Accumulate { scale: 0.05 };

impl Case for LayersCase {
    fn name(&self) -> String {
        let Self { format, width, mixer, experts, shared } = self;
        format!("{format} {width}, mixer {mixer:?}, experts {experts:?}, shared {shared:?}")
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let narrow = rig.activations() != DType::F32;
        // Narrow activations are rounded a dozen times a layer, each time by 2^-9 of values up to 10: the reference itself
        // lies 0.02 from exact sums in the stream, and 0.07 in states, of 3 and 45.
        let tolerance = if narrow {
            Tolerance { absolute: 5e-2, relative: 2e-2 }
        } else {
            Tolerance::F32.scaled(20.0)
        };
        let values = rig.stream("x").values(Fill::Normal(1.0), self.width);
        let x = rig.watched_of("x", 1, self.width, DType::F32, &values, tolerance)?;
        let weights = Weights::new(self, rig)?;
        // Each pair has a state of its own: a back end may read it before the layers ahead are done.
        let pair = || {
            let mamba = Mamba::new(self, rig, &weights, &x, tolerance)?;
            Ok((mamba, Experts::new(self, rig, &weights, &x, tolerance)?))
        };
        let pairs = [pair()?, pair()?];
        let key = laws::new_key();
        let encode = |(mamba, experts): &(Mamba<'_, B>, Experts<'_, B>)| {
            mamba.encode(&rig.step())?;
            experts.encode(&rig.step())
        };
        for _ in 0..STEPS {
            rig.backend().run_step(key, &mut || pairs.iter().try_for_each(encode))?;
        }
        Ok(())
    }
}

struct Weights<B: Backend> {
    in_proj: Weight<B>,
    out_proj: Weight<B>,
    router: Weight<B>,
    up: Weight<B>,
    down: Weight<B>,
    shared: Option<[Weight<B>; 2]>,
}

impl<B: Backend> Weights<B> {
    fn new(case: &LayersCase, rig: &Rig<'_, B>) -> Result<Self> {
        let [heads, head_dim, size, groups] = case.mixer;
        let ([experts, _, inner], width) = (case.experts, case.width);
        let weight = |name, count, [outputs, inputs]: [usize; 2]| {
            rig.weight(name, count, outputs, inputs, case.format)
        };
        let mixed = heads * head_dim;
        let shared = |inner| {
            let up = weight("shared up", 1, [inner, width])?;
            Ok([up, weight("shared down", 1, [width, inner])?])
        };
        Ok(Self {
            in_proj: weight("in_proj", 1, [2 * mixed + 2 * groups * size + heads, width])?,
            out_proj: weight("out_proj", 1, [width, mixed])?,
            router: rig.weight("router", 1, experts, width, Format::F32)?,
            up: weight("up", experts, [inner, width])?,
            down: weight("down", experts, [width, inner])?,
            shared: case.shared.map(shared).transpose()?,
        })
    }
}

fn norm<B: Backend>(rig: &Rig<'_, B>, x: &Tensor<B>, name: &str) -> Result<RmsNorm<B>> {
    Ok(RmsNorm {
        x: x.clone(),
        weight: rig.param(name, 1, x.cols(), Fill::NearOne(0.2))?,
        groups: 1,
        eps: 1e-5,
        out: rig.activation(&format!("{name} out"), 1, x.cols(), Fill::Normal(1.0))?,
    })
}

fn matmul<'a, B: Backend>(
    x: &Tensor<B>,
    weight: &'a Weight<B>,
    store: Store,
    out: &Tensor<B>,
) -> Matmul<'a, B> {
    Matmul { x: x.clone(), weight, bias: None, store, out: out.clone() }
}

struct Mamba<'a, B: Backend> {
    first: NormProducts<'a, B>,
    scan: SsmScan<B>,
    last: GatedNormMatmul<'a, B>,
}

impl<'a, B: Backend> Mamba<'a, B> {
    fn new(
        case: &LayersCase,
        rig: &Rig<'_, B>,
        weights: &'a Weights<B>,
        x: &Tensor<B>,
        tolerance: Tolerance,
    ) -> Result<Self> {
        let [heads, head_dim, size, groups] = case.mixer;
        let (inner, both) = (heads * head_dim, groups * size);
        let channels = inner + 2 * both;
        let between = |name, cols| rig.activation(name, 1, cols, Fill::Normal(1.0));
        let projected = between("projected", inner + channels + heads)?;
        let convolved = between("convolved", channels)?;
        let segments = rig.segments(&BATCH)?;
        let state = |name: &str, shape: [usize; 2]| {
            let values = rig.stream(name).values(Fill::Normal(0.5), shape[0] * shape[1]);
            rig.state_of(name, shape, DType::F32, &values, tolerance.scaled(4.0))
        };
        let conv = CausalConv1d {
            x: projected.columns(inner, channels),
            weight: rig.param("taps", channels, TAPS, Fill::Normal(0.5))?,
            bias: Some(rig.param("conv bias", 1, channels, Fill::Normal(0.5))?),
            activation: Activation::Silu,
            state: state("windows", [BATCH.slots * channels, TAPS - 1])?,
            segments: segments.clone(),
            out: convolved.clone(),
        };
        let scan = SsmScan {
            x: convolved.columns(0, inner),
            b: convolved.columns(inner, both),
            c: convolved.columns(inner + both, both),
            dt: projected.columns(inner + channels, heads),
            head_params: rig.param("head_params", 3, heads, Fill::Normal(0.5))?,
            dt_limit: [0.0, f32::INFINITY],
            head_dim,
            state_size: size,
            state: state("states", [BATCH.slots * inner, size])?,
            segments,
            out: between("y", inner)?,
        };
        let gated = gated_norm(rig, groups, [&scan.out, &projected.columns(0, inner)])?;
        let norm = norm(rig, x, "mamba norm")?;
        let products = vec![Product {
            matmul: matmul(&norm.out, &weights.in_proj, Store::Replace, &projected),
            activate: None,
        }];
        let out_proj = matmul(&gated.out, &weights.out_proj, STORE, x);
        Ok(Self {
            first: NormProducts { norm, keep: false, products, conv: Some(conv) },
            scan,
            last: GatedNormMatmul { norm: gated, matmul: out_proj },
        })
    }

    fn encode(&self, step: &Step<'_, B>) -> Result<()> {
        step.fused(&self.first)?;
        step.run(&self.scan)?;
        step.fused(&self.last)
    }
}

fn gated_norm<B: Backend>(
    rig: &Rig<'_, B>,
    groups: usize,
    [y, z]: [&Tensor<B>; 2],
) -> Result<GatedRmsNorm<B>> {
    Ok(GatedRmsNorm {
        y: y.clone(),
        z: z.clone(),
        weight: rig.param("gated norm", 1, y.cols(), Fill::NearOne(0.2))?,
        groups,
        eps: 1e-5,
        order: GateOrder::GateThenNorm,
        out: rig.activation("gated", 1, y.cols(), Fill::Normal(1.0))?,
    })
}

struct Experts<'a, B: Backend> {
    first: NormProducts<'a, B>,
    up: MoeUp<'a, B>,
    down: MoeDown<'a, B>,
}

impl<'a, B: Backend> Experts<'a, B> {
    fn new(
        case: &LayersCase,
        rig: &Rig<'_, B>,
        weights: &'a Weights<B>,
        x: &Tensor<B>,
        tolerance: Tolerance,
    ) -> Result<Self> {
        let [_, top_k, inner] = case.experts;
        let between = |name, rows, cols| rig.activation(name, rows, cols, Fill::Normal(1.0));
        let norm = norm(rig, x, "experts norm")?;
        let route = route(case, rig, tolerance)?;
        let logits = matmul(&norm.out, &weights.router, Store::Replace, &route.logits);
        let mut products = vec![Product { matmul: logits, activate: None }];
        let mut shared = None;
        if let Some([up, down]) = &weights.shared {
            let (raw, out) = (between("shared raw", 1, up.rows)?, between("shared", 1, up.rows)?);
            let activate = Activate {
                function: Activation::Relu2,
                x: raw.clone(),
                gate: None,
                out: out.clone(),
            };
            let matmul_up = matmul(&norm.out, up, Store::Replace, &raw);
            products.push(Product { matmul: matmul_up, activate: Some(activate) });
            shared = Some(matmul(&out, down, STORE, x));
        }
        let up = MoeMatmul {
            x: norm.out.clone(),
            input: ExpertInput::Row,
            weight: &weights.up,
            ids: route.ids.clone(),
            groups: None,
            activation: Activation::Relu2,
            out: between("between", top_k, inner)?,
        };
        let pairs = between("pairs", top_k, case.width)?;
        let down = MoeMatmul {
            x: up.out.clone(),
            input: ExpertInput::Pair,
            weight: &weights.down,
            ids: route.ids.clone(),
            groups: None,
            activation: Activation::Identity,
            out: pairs.clone(),
        };
        let combine =
            MoeCombine { x: pairs, weights: route.weights.clone(), store: STORE, out: x.clone() };
        Ok(Self {
            first: NormProducts { norm, keep: true, products, conv: None },
            up: MoeUp { route, up },
            down: MoeDown { down, combine, shared },
        })
    }

    fn encode(&self, step: &Step<'_, B>) -> Result<()> {
        step.fused(&self.first)?;
        step.fused(&self.up)?;
        step.fused(&self.down)
    }
}

fn route<B: Backend>(
    case: &LayersCase,
    rig: &Rig<'_, B>,
    tolerance: Tolerance,
) -> Result<MoeRoute<B>> {
    let [experts, top_k, _] = case.experts;
    // Rounding must not change who is chosen: the bias alone decides.
    let bias: Vec<f32> = (0..experts).map(|e| (e * 5 % experts) as f32).collect();
    Ok(MoeRoute {
        logits: rig.input_of("logits", [1, experts], DType::F32, &vec![0.0; experts])?,
        bias: Some(rig.param_of("bias", 1, experts, &bias)?),
        rule: RouteRule {
            score: Score::Sigmoid,
            top_k,
            groups: 1,
            top_groups: 1,
            normalise: Some(1e-20),
            scale: 2.5,
        },
        ids: rig.output_u32("ids", 1, top_k)?,
        weights: rig.output("weights", 1, top_k, DType::F32, tolerance)?,
    })
}
