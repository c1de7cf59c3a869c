//! Products with the chosen experts of Nemotron 3 Nano, each alone and both in a row, as a layer runs them.

use super::cases::*;
use super::data::Data;
use super::{Bench, Floor, Timed, Wanted};
use crate::error::Result;
use crate::ops::*;
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, Weight};

const FORMAT: Format = Format::Nvfp4;

/// Rows that are timed: decoding one sequence and some, prompts.
const ROWS: [usize; 5] = [1, 4, 16, 512, 4096];

pub(super) async fn run<B: Timed>(bench: &mut Bench<'_, B>, data: &mut Data<'_, B>) -> Result<()> {
    if !bench.wants("moe_matmul") {
        return Ok(());
    }
    let up = data.weight(EXPERTS, EXPERT, HIDDEN, FORMAT).await?;
    let down = data.weight(EXPERTS, HIDDEN, EXPERT, FORMAT).await?;
    for rows in ROWS {
        let layer = Layer::new(bench.device, data, rows)?;
        layer.time(bench, data, "up", &[&up]).await?;
        layer.time(bench, data, "down", &[&down]).await?;
        layer.time(bench, data, "up, relu2, down", &[&up, &down]).await?;
    }
    Ok(())
}

/// Operands of a layer's experts for some tokens.
struct Layer<B: Timed> {
    rows: usize,
    ids: Vec<Tensor<B>>,
    /// Where sorted pairs pay.
    groups: Option<ExpertGroups<B>>,
    x: Vec<Tensor<B>>,
    hidden: Vec<Tensor<B>>,
    up: Tensor<B>,
    down: Tensor<B>,
}

impl<B: Timed> Layer<B> {
    fn new(device: &B, data: &mut Data<'_, B>, rows: usize) -> Result<Self> {
        let (pairs, activations) = (rows * TOP_K, device.policy().activations);
        let sorted = rows >= device.policy().group_experts_from;
        let groups = || -> Result<_> {
            Ok(ExpertGroups {
                order: output(device, pairs, 1, DType::U32)?,
                offsets: output(device, EXPERTS + 1, 1, DType::U32)?,
            })
        };
        let count = sets(rows * HIDDEN * activations.bytes());
        Ok(Self {
            rows,
            ids: (0..8).map(|_| data.experts(rows, TOP_K, 128)).collect::<Result<_>>()?,
            groups: sorted.then(groups).transpose()?,
            x: (0..count).map(|_| data.activation(rows, HIDDEN)).collect::<Result<_>>()?,
            hidden: (0..count.min(2))
                .map(|_| data.activation(pairs, EXPERT))
                .collect::<Result<_>>()?,
            up: output(device, pairs, EXPERT, activations)?,
            down: output(device, pairs, HIDDEN, activations)?,
        })
    }

    /// One of the products, on operands of its own or on what the first has left.
    fn product<'w>(&self, weight: &'w Weight<B>, run: usize, alone: bool) -> MoeMatmul<'w, B> {
        let (ids, groups) = (self.ids[run % self.ids.len()].clone(), self.groups.clone());
        if weight.cols == HIDDEN {
            let x = self.x[run % self.x.len()].clone();
            let (input, out) = (ExpertInput::Row, self.up.clone());
            return MoeMatmul { x, input, weight, ids, groups, activation: Activation::Relu2, out };
        }
        let x = if alone { &self.hidden[run % self.hidden.len()] } else { &self.up }.clone();
        let (input, out) = (ExpertInput::Pair, self.down.clone());
        MoeMatmul { x, input, weight, ids, groups, activation: Activation::Identity, out }
    }

    fn floor(&self, weights: &[&Weight<B>]) -> Floor {
        let operations = |w: &&Weight<B>| 2.0 * (self.rows * TOP_K * w.rows * w.cols) as f64;
        let one = |w: &&Weight<B>| {
            (FORMAT.data_bytes(w.rows, w.cols) + FORMAT.scale_bytes(w.rows, w.cols)) as f64
        };
        let hit =
            EXPERTS as f64 * (1.0 - (1.0 - TOP_K as f64 / EXPERTS as f64).powi(self.rows as i32));
        if self.rows > 512 {
            Floor::Operations(weights.iter().map(operations).sum())
        } else {
            Floor::Bytes(hit * weights.iter().map(one).sum::<f64>())
        }
    }

    async fn time(
        &self,
        bench: &mut Bench<'_, B>,
        data: &Data<'_, B>,
        name: &str,
        weights: &[&Weight<B>],
    ) -> Result<()> {
        let (device, alone) = (bench.device, weights.len() == 1);
        let shape = format!("{FORMAT} {name} {} tokens", self.rows);
        let last = weights[weights.len() - 1];
        let out = self.product(last, 0, alone).out;
        let mut encode = |run: usize| {
            if let Some(groups) = self.groups.clone() {
                let ids = self.ids[run % self.ids.len()].clone();
                device.moe_group(&MoeGroup { ids, experts: EXPERTS, groups })?;
            }
            weights
                .iter()
                .try_for_each(|weight| device.moe_matmul(&self.product(weight, run, alone)))
        };
        bench.row("moe_matmul", shape, self.floor(weights), &out, &mut encode).await?;
        // The operands of one more run are known; every expert has the same matrix.
        encode(0)?;
        let op = self.product(last, 0, alone);
        let wanted = Wanted {
            x: |pair| match op.input {
                ExpertInput::Row => op.x.row_range(pair / TOP_K, 1),
                ExpertInput::Pair => op.x.row_range(pair, 1),
            },
            weight: |output| data.weight_row(FORMAT, last.cols, output),
            activation: op.activation,
            rounding: 0.0,
        };
        wanted.check(device, &out).await
    }
}
