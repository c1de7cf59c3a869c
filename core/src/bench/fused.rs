//! The fused ops of a decode step, at the shapes of Nemotron 3 Nano.

use super::cases::*;
use super::data::Data;
use super::{Bench, Floor, Timed};
use crate::conformance::Fill;
use crate::error::Result;
use crate::ops::*;
use crate::step::Step;
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, Weight};

/// Width of the shared expert.
const SHARED: usize = 3712;

/// Rows of the steps that are timed.
const ROWS: [usize; 3] = [1, 4, 8];

const FORMAT: Format = Format::Nvfp4;

/// Into the residual stream.
const ADDS: Store = Store::Accumulate { scale: 1.0 };

pub(super) async fn run<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    if bench.wants("norm_products") {
        inputs(bench, data).await?;
        routers(bench, data).await?;
    }
    if bench.wants("gated_norm_matmul") {
        outputs(bench, data).await?;
    }
    if bench.wants("moe_up") {
        ups(bench, data).await?;
    }
    if bench.wants("moe_down") {
        downs(bench, data).await?;
    }
    Ok(())
}

/// Bytes of one matrix.
fn bytes(rows: usize, cols: usize, format: Format) -> usize {
    format.data_bytes(rows, cols) + format.scale_bytes(rows, cols)
}

/// As many weights as outgrow the cache.
async fn weights<B: Timed>(
    data: &mut Data<'_, B>,
    rows: usize,
    cols: usize,
) -> Result<Vec<Weight<B>>> {
    let mut list = Vec::new();
    for _ in 0..sets(bytes(rows, cols, FORMAT)) {
        list.push(data.weight(1, rows, cols, FORMAT).await?);
    }
    Ok(list)
}

/// Operands of a pre-norm: the stream, the gain, the normed rows.
struct Normed<B: Timed>([Tensor<B>; 3]);

impl<B: Timed> Normed<B> {
    fn new(device: &B, data: &mut Data<'_, B>, rows: usize) -> Result<Self> {
        Ok(Self([
            data.values(rows, HIDDEN, Fill::Normal(1.0))?,
            data.values(1, HIDDEN, Fill::NearOne(0.1))?,
            output(device, rows, HIDDEN, device.policy().activations)?,
        ]))
    }

    fn op(&self) -> RmsNorm<B> {
        let [x, weight, out] = self.0.clone();
        RmsNorm { x, weight, groups: 1, eps: 1e-5, out }
    }
}

fn plain<'a, B: Timed>(x: &Tensor<B>, weight: &'a Weight<B>, out: &Tensor<B>) -> Matmul<'a, B> {
    Matmul { x: x.clone(), weight, bias: None, store: Store::Replace, out: out.clone() }
}

fn activate<B: Timed>(x: &Tensor<B>, out: &Tensor<B>) -> Activate<B> {
    Activate { function: Activation::Relu2, x: x.clone(), gate: None, out: out.clone() }
}

/// Norm, in_proj, convolution.
async fn inputs<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    let device = bench.device;
    let activations = device.policy().activations;
    let list = weights(data, IN_PROJ, HIDDEN).await?;
    for rows in ROWS {
        let normed = Normed::new(device, data, rows)?;
        let out = output(device, rows, IN_PROJ, activations)?;
        let convolved = output(device, rows, CONV, activations)?;
        let taps = data.values(CONV, 4, Fill::Normal(0.5))?;
        let bias = data.values(1, CONV, Fill::Normal(0.5))?;
        let state = data.values(rows * CONV, 3, Fill::Normal(1.0))?;
        let segments = data.segments(rows as u32, 1, 100)?;
        let op = |weight| NormProducts {
            norm: normed.op(),
            keep: false,
            products: vec![Product { matmul: plain(&normed.0[2], weight, &out), activate: None }],
            conv: Some(CausalConv1d {
                x: out.columns(INNER, CONV),
                weight: taps.clone(),
                bias: Some(bias.clone()),
                activation: Activation::Silu,
                state: state.clone(),
                segments: segments.clone(),
                out: convolved.clone(),
            }),
        };
        let ops: Vec<_> = list.iter().map(op).collect();
        let floor = Floor::Bytes((bytes(IN_PROJ, HIDDEN, FORMAT) + rows * CONV * 24) as f64);
        let shape = format!("{FORMAT} in_proj, conv1d {rows} rows");
        let mut encode = |i: usize| Step::new(device).fused(&ops[i % ops.len()]);
        bench.row("norm_products", shape, floor, &convolved, &mut encode).await?;
    }
    Ok(())
}

/// Norm, the router's logits, the shared expert's first product.
async fn routers<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    let device = bench.device;
    let activations = device.policy().activations;
    let router = data.weight(1, EXPERTS, HIDDEN, Format::F32).await?;
    let list = weights(data, SHARED, HIDDEN).await?;
    for rows in ROWS {
        let normed = Normed::new(device, data, rows)?;
        let logits = output(device, rows, EXPERTS, DType::F32)?;
        let up = output(device, rows, SHARED, activations)?;
        let active = output(device, rows, SHARED, activations)?;
        let op = |weight| NormProducts {
            norm: normed.op(),
            keep: true,
            products: vec![
                Product { matmul: plain(&normed.0[2], &router, &logits), activate: None },
                Product {
                    matmul: plain(&normed.0[2], weight, &up),
                    activate: Some(activate(&up, &active)),
                },
            ],
            conv: None,
        };
        let ops: Vec<_> = list.iter().map(op).collect();
        let moved = bytes(SHARED, HIDDEN, FORMAT) + bytes(EXPERTS, HIDDEN, Format::F32);
        let shape = format!("{FORMAT} router, shared up {rows} rows");
        let mut encode = |i: usize| Step::new(device).fused(&ops[i % ops.len()]);
        bench.row("norm_products", shape, Floor::Bytes(moved as f64), &active, &mut encode).await?;
    }
    Ok(())
}

/// Gated norm, out_proj, residual.
async fn outputs<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    let device = bench.device;
    let activations = device.policy().activations;
    let list = weights(data, HIDDEN, INNER).await?;
    for rows in ROWS {
        let (y, z) = (data.activation(rows, INNER)?, data.activation(rows, INNER)?);
        let gain = data.values(1, INNER, Fill::NearOne(0.1))?;
        let normed = output(device, rows, INNER, activations)?;
        let out = data.values(rows, HIDDEN, Fill::Normal(1.0))?;
        let op = |weight| GatedNormMatmul {
            norm: GatedRmsNorm {
                y: y.clone(),
                z: z.clone(),
                weight: gain.clone(),
                groups: GROUPS,
                eps: 1e-5,
                order: GateOrder::GateThenNorm,
                out: normed.clone(),
            },
            matmul: Matmul { store: ADDS, ..plain(&normed, weight, &out) },
        };
        let ops: Vec<_> = list.iter().map(op).collect();
        let floor = Floor::Bytes(bytes(HIDDEN, INNER, FORMAT) as f64);
        let shape = format!("{FORMAT} out_proj {rows} rows");
        let mut encode = |i: usize| Step::new(device).fused(&ops[i % ops.len()]);
        bench.row("gated_norm_matmul", shape, floor, &out, &mut encode).await?;
    }
    Ok(())
}

/// Bytes of the experts that `rows` tokens meet, chosen uniformly.
fn met(rows: usize, one: usize) -> f64 {
    EXPERTS as f64 * (1.0 - (1.0 - TOP_K as f64 / EXPERTS as f64).powi(rows as i32)) * one as f64
}

/// The choice, the experts' first product.
async fn ups<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    let device = bench.device;
    let activations = device.policy().activations;
    let bank = data.weight(EXPERTS, EXPERT, HIDDEN, FORMAT).await?;
    for rows in ROWS {
        let ids = output(device, rows, TOP_K, DType::U32)?;
        let scores = output(device, rows, TOP_K, DType::F32)?;
        let bias = data.values(1, EXPERTS, Fill::Normal(0.1))?;
        let x = data.activation(rows, HIDDEN)?;
        let out = output(device, rows * TOP_K, EXPERT, activations)?;
        let mut ops = Vec::new();
        for _ in 0..8 {
            let route = MoeRoute {
                logits: data.values(rows, EXPERTS, Fill::Normal(1.0))?,
                bias: Some(bias.clone()),
                rule: RULE,
                ids: ids.clone(),
                weights: scores.clone(),
            };
            let up = MoeMatmul {
                x: x.clone(),
                input: ExpertInput::Row,
                weight: &bank,
                ids: ids.clone(),
                groups: None,
                activation: Activation::Relu2,
                out: out.clone(),
            };
            ops.push(MoeUp { route, up });
        }
        let floor = Floor::Bytes(met(rows, bytes(EXPERT, HIDDEN, FORMAT)));
        let mut encode = |i: usize| Step::new(device).fused(&ops[i % ops.len()]);
        bench.row("moe_up", format!("{FORMAT} {rows} tokens"), floor, &out, &mut encode).await?;
    }
    Ok(())
}

/// The experts' second product, their sum, the shared expert's second product.
async fn downs<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    let device = bench.device;
    let activations = device.policy().activations;
    let bank = data.weight(EXPERTS, HIDDEN, EXPERT, FORMAT).await?;
    let list = weights(data, HIDDEN, SHARED).await?;
    for rows in ROWS {
        let x = data.activation(rows * TOP_K, EXPERT)?;
        let pairs = output(device, rows * TOP_K, HIDDEN, activations)?;
        let scores = data.values(rows, TOP_K, Fill::Uniform(0.1, 0.9))?;
        let shared_x = data.activation(rows, SHARED)?;
        let out = data.values(rows, HIDDEN, Fill::Normal(1.0))?;
        let mut ops = Vec::new();
        for weight in &list {
            let down = MoeMatmul {
                x: x.clone(),
                input: ExpertInput::Pair,
                weight: &bank,
                ids: data.experts(rows, TOP_K, 128)?,
                groups: None,
                activation: Activation::Identity,
                out: pairs.clone(),
            };
            let combine = MoeCombine {
                x: pairs.clone(),
                weights: scores.clone(),
                store: ADDS,
                out: out.clone(),
            };
            let shared = Some(Matmul { store: ADDS, ..plain(&shared_x, weight, &out) });
            ops.push(MoeDown { down, combine, shared });
        }
        let moved = met(rows, bytes(HIDDEN, EXPERT, FORMAT)) + bytes(HIDDEN, SHARED, FORMAT) as f64;
        let shape = format!("{FORMAT} {rows} tokens, shared");
        let mut encode = |i: usize| Step::new(device).fused(&ops[i % ops.len()]);
        bench.row("moe_down", shape, Floor::Bytes(moved), &out, &mut encode).await?;
    }
    Ok(())
}
