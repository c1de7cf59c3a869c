//! The shapes of Nemotron 3 Nano 30B-A3B.

use super::data::Data;
use super::{Bench, Floor, Timed, Wanted, experts, fused};
use crate::backend::Memory;
use crate::conformance::Fill;
use crate::error::Result;
use crate::ops::*;
use crate::tensor::{DType, Tensor};
use crate::weight::Format;

pub(super) const HIDDEN: usize = 2688;
const HEADS: usize = 64;
const HEAD_DIM: usize = 64;
const STATE: usize = 128;
pub(super) const GROUPS: usize = 8;
pub(super) const INNER: usize = HEADS * HEAD_DIM;
pub(super) const CONV: usize = INNER + 2 * GROUPS * STATE;
pub(super) const IN_PROJ: usize = INNER + CONV + HEADS;
pub(super) const EXPERTS: usize = 128;
pub(super) const EXPERT: usize = 1856;
pub(super) const TOP_K: usize = 6;
const VOCABULARY: usize = 131_072;

/// How the router chooses.
pub(super) const RULE: RouteRule = RouteRule {
    score: Score::Sigmoid,
    top_k: TOP_K,
    groups: 1,
    top_groups: 1,
    normalise: Some(1e-20),
    scale: 2.5,
};

/// Bytes of operands that are gone from the cache by the time they are met again.
const CACHE: usize = 160 << 20;

pub(super) async fn run<B: Timed>(bench: &mut Bench<'_, B>) -> Result<()> {
    let mut data = Data::new(bench.device);
    scans(bench, &mut data).await?;
    convolutions(bench, &mut data).await?;
    norms(bench, &mut data).await?;
    products(bench, &mut data).await?;
    routers(bench, &mut data).await?;
    experts::run(bench, &mut data).await?;
    fused::run(bench, &mut data).await?;
    attentions(bench, &mut data).await?;
    tokens(bench, &mut data).await
}

/// How many sets of operands of so many bytes outgrow the cache.
pub(super) fn sets(bytes: usize) -> usize {
    (CACHE / bytes.max(1)).clamp(1, 12)
}

pub(super) fn output<B: Timed>(
    device: &B,
    rows: usize,
    cols: usize,
    dtype: DType,
) -> Result<Tensor<B>> {
    device.tensor(rows, cols, dtype, Memory::Scratch, "output")
}

async fn scans<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    if !bench.wants("ssm_scan") {
        return Ok(());
    }
    let device = bench.device;
    let activations = device.policy().activations;
    for (count, len) in
        [(1, 1), (16, 1), (64, 1), (256, 1), (1, 512), (1, 4096), (1, 16_384), (8, 4096)]
    {
        let segments = data.segments(count, len, if len == 1 { 100 } else { 0 })?;
        let (rows, slots) = ((count * len) as usize, count as usize);
        let state_bytes = slots * INNER * STATE * device.policy().state.bytes();
        let params = data.values(3, HEADS, Fill::Uniform(0.0, 1.0))?;
        let dt = data.activation(rows, HEADS)?;
        let out = output(device, rows, INNER, activations)?;
        let inputs: Vec<_> = (0..sets(state_bytes + rows * CONV * activations.bytes()))
            .map(|_| {
                let state = data.tensor(slots * INNER, STATE, device.policy().state)?;
                Ok((data.activation(rows, CONV)?, state))
            })
            .collect::<Result<_>>()?;
        let op = |(conv, state): &(Tensor<B>, Tensor<B>)| SsmScan {
            x: conv.columns(0, INNER),
            b: conv.columns(INNER, GROUPS * STATE),
            c: conv.columns(INNER + GROUPS * STATE, GROUPS * STATE),
            dt: dt.clone(),
            head_params: params.clone(),
            dt_limit: [0.0, f32::INFINITY],
            head_dim: HEAD_DIM,
            state_size: STATE,
            state: state.clone(),
            segments: segments.clone(),
            out: out.clone(),
        };
        let states_moved = if len == 1 { 2 } else { 1 };
        let bytes =
            states_moved * state_bytes + rows * (CONV + INNER + HEADS) * activations.bytes();
        bench
            .row(
                "ssm_scan",
                format!("{count} x {len}"),
                Floor::Bytes(bytes as f64),
                &out,
                &mut |i| device.ssm_scan(&op(&inputs[i % inputs.len()])),
            )
            .await?;
    }
    Ok(())
}

async fn convolutions<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    if !bench.wants("causal_conv1d") {
        return Ok(());
    }
    let device = bench.device;
    let activations = device.policy().activations;
    for (count, len) in [(1, 1), (32, 1), (1, 4096)] {
        let rows = (count * len) as usize;
        let (weight, bias) =
            (data.values(CONV, 4, Fill::Normal(0.5))?, data.values(1, CONV, Fill::Normal(0.5))?);
        let segments = data.segments(count, len, 100)?;
        let out = output(device, rows, CONV, activations)?;
        let inputs: Vec<_> = (0..sets(rows * CONV * activations.bytes()))
            .map(|_| {
                let state = data.values(count as usize * CONV, 3, Fill::Normal(1.0))?;
                Ok((data.activation(rows, CONV)?, state))
            })
            .collect::<Result<_>>()?;
        let op = |(x, state): &(Tensor<B>, Tensor<B>)| CausalConv1d {
            x: x.clone(),
            weight: weight.clone(),
            bias: Some(bias.clone()),
            activation: Activation::Silu,
            state: state.clone(),
            segments: segments.clone(),
            out: out.clone(),
        };
        let floor = Floor::Bytes(
            (2 * rows * CONV * activations.bytes() + count as usize * CONV * 24) as f64,
        );
        bench
            .row("causal_conv1d", format!("{count} x {len}"), floor, &out, &mut |i| {
                device.causal_conv1d(&op(&inputs[i % inputs.len()]))
            })
            .await?;
    }
    Ok(())
}

async fn norms<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    let device = bench.device;
    let activations = device.policy().activations;
    for rows in [1, 4096] {
        let op = RmsNorm {
            x: data.values(rows, HIDDEN, Fill::Normal(1.0))?,
            weight: data.values(1, HIDDEN, Fill::NearOne(0.1))?,
            groups: 1,
            eps: 1e-5,
            out: output(device, rows, HIDDEN, activations)?,
        };
        let floor = Floor::Bytes((rows * HIDDEN * (4 + activations.bytes())) as f64);
        if bench.wants("rms_norm") {
            bench
                .row("rms_norm", format!("{rows} rows"), floor, &op.out, &mut |_| {
                    device.rms_norm(&op)
                })
                .await?;
        }
        let op = GatedRmsNorm {
            y: data.activation(rows, INNER)?,
            z: data.activation(rows, INNER)?,
            weight: data.values(1, INNER, Fill::NearOne(0.1))?,
            groups: GROUPS,
            eps: 1e-5,
            order: GateOrder::GateThenNorm,
            out: output(device, rows, INNER, activations)?,
        };
        let floor = Floor::Bytes((3 * rows * INNER * activations.bytes()) as f64);
        if bench.wants("gated_rms_norm") {
            bench
                .row("gated_rms_norm", format!("{rows} rows"), floor, &op.out, &mut |_| {
                    device.gated_rms_norm(&op)
                })
                .await?;
        }
    }
    Ok(())
}

async fn products<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    if !bench.wants("matmul") {
        return Ok(());
    }
    let device = bench.device;
    let activations = device.policy().activations;
    let shapes = [
        ("in_proj", IN_PROJ, HIDDEN),
        ("out_proj", HIDDEN, INNER),
        ("lm_head", VOCABULARY, HIDDEN),
    ];
    for format in [Format::Nvfp4, Format::Fp8, Format::BF16] {
        for (name, outputs, inputs) in shapes {
            if name == "lm_head" && format != Format::BF16 {
                continue;
            }
            let weight_bytes =
                format.data_bytes(outputs, inputs) + format.scale_bytes(outputs, inputs);
            let mut weights = Vec::new();
            for _ in 0..sets(weight_bytes) {
                weights.push(data.weight(1, outputs, inputs, format).await?);
            }
            let counts: &[usize] =
                if name == "lm_head" { &[1, 32] } else { &[1, 8, 16, 32, 64, 256, 4096] };
            for &rows in counts {
                let x = data.activation(rows, inputs)?;
                let out = output(device, rows, outputs, activations)?;
                let bytes = (weight_bytes + rows * (inputs + outputs) * activations.bytes()) as f64;
                let operations = 2.0 * rows as f64 * outputs as f64 * inputs as f64;
                let floor =
                    if rows > 256 { Floor::Operations(operations) } else { Floor::Bytes(bytes) };
                let op = |i: usize| Matmul {
                    x: x.clone(),
                    weight: &weights[i % weights.len()],
                    bias: None,
                    store: Store::Replace,
                    out: out.clone(),
                };
                let shape = format!("{format} {name} {rows} rows");
                bench.row("matmul", shape, floor, &out, &mut |i| device.matmul(&op(i))).await?;
                let wanted = Wanted {
                    x: |row| x.row_range(row, 1),
                    weight: |output| data.weight_row(format, inputs, output),
                    activation: Activation::Identity,
                    rounding: device.rounding(&op(0)),
                };
                wanted.check(device, &out).await?;
            }
        }
    }
    Ok(())
}

async fn routers<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    if !bench.wants("moe_route") {
        return Ok(());
    }
    let device = bench.device;
    for rows in [1, 4096] {
        let bias = data.values(1, EXPERTS, Fill::Normal(0.1))?;
        let ids = output(device, rows, TOP_K, DType::U32)?;
        let weights = output(device, rows, TOP_K, DType::F32)?;
        let op = |logits: Tensor<B>| MoeRoute {
            logits,
            bias: Some(bias.clone()),
            rule: RULE,
            ids: ids.clone(),
            weights: weights.clone(),
        };
        let logits: Vec<_> =
            (0..8).map(|_| data.values(rows, EXPERTS, Fill::Normal(1.0))).collect::<Result<_>>()?;
        let floor = Floor::Bytes((rows * (EXPERTS * 4 + TOP_K * 8)) as f64);
        bench
            .row("moe_route", format!("{rows} rows"), floor, &weights, &mut |i| {
                device.moe_route(&op(logits[i % logits.len()].clone()))
            })
            .await?;
    }
    Ok(())
}

async fn attentions<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    if !bench.wants("attention") {
        return Ok(());
    }
    let device = bench.device;
    let activations = device.policy().activations;
    let (heads, kv_heads, head_dim) = (32, 2, 128);
    for (count, len, position) in [(1, 1, 4095), (1, 1, 32_767), (32, 1, 4095), (1, 4096, 0)] {
        let rows = (count * len) as usize;
        let context = (position + len) as usize;
        let cached = count as usize * context;
        let kv = device.policy().kv;
        let bytes = 2 * cached * kv_heads * head_dim * kv.bytes();
        let caches: Vec<_> = (0..sets(bytes))
            .map(|_| {
                let k = data.tensor(cached, kv_heads * head_dim, kv)?;
                Ok(KvCache { k, v: data.tensor(cached, kv_heads * head_dim, kv)?, context })
            })
            .collect::<Result<_>>()?;
        let q = data.activation(rows, heads * head_dim)?;
        let out = output(device, rows, heads * head_dim, activations)?;
        let segments = data.segments(count, len, position)?;
        let operations = 2.0 * f64::from(len) * f64::from(len) * (heads * head_dim) as f64;
        let floor =
            if len > 1 { Floor::Operations(operations) } else { Floor::Bytes(bytes as f64) };
        bench
            .row("attention", format!("{count} x {len} at {position}"), floor, &out, &mut |i| {
                device.attention(&Attention {
                    q: q.clone(),
                    cache: caches[i % caches.len()].clone(),
                    head_dim,
                    scale: 0.088,
                    segments: segments.clone(),
                    out: out.clone(),
                })
            })
            .await?;
    }
    Ok(())
}

async fn tokens<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    let device = bench.device;
    let rows = 1;
    let x = data.values(rows, VOCABULARY, Fill::Normal(1.0))?;
    let floor = Floor::Bytes((rows * VOCABULARY * 4) as f64);
    if bench.wants("argmax") {
        let op = Argmax { x: x.clone(), out: output(device, rows, 1, DType::U32)? };
        bench
            .row("argmax", format!("{rows} rows"), floor, &op.out, &mut |_| device.argmax(&op))
            .await?;
    }
    if bench.wants("top_k") {
        let values = output(device, rows, 64, DType::F32)?;
        let op = TopK { x, values: values.clone(), indices: output(device, rows, 64, DType::U32)? };
        bench
            .row("top_k", format!("{rows} rows, k 64"), floor, &values, &mut |_| device.top_k(&op))
            .await?;
    }
    Ok(())
}
