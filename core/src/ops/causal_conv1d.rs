//! Depthwise causal convolution over each sequence, with carried history.
//!
//! `out[t, c] = f(bias[c] + sum_j weight[c, j] * x[t - width + 1 + j, c])`; the last tap meets the current token.
//! Inputs before the segment come from the slot's window, or are zero where the segment is fresh.

use super::activate::Activation;
use super::check;
use crate::backend::Backend;
use crate::batch::Segments;
use crate::conformance::{Case, Fill, Ragged, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

/// Mamba2's short convolution, bias and activation included.
pub struct CausalConv1d<B: Backend> {
    /// Raw inputs. `[rows, channels]`
    pub x: Tensor<B>,
    /// Taps, oldest first. `[channels, width] f32`
    pub weight: Tensor<B>,
    /// Bias. `[1, channels] f32`
    pub bias: Option<Tensor<B>>,
    /// Applied to the sum.
    pub activation: Activation,
    /// The last `width - 1` raw inputs of every slot, oldest first. `[slots * channels, width - 1] f32`
    pub state: Tensor<B>,
    /// Which rows are whose.
    pub segments: Segments<B>,
    /// Output. `[rows, channels]`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for CausalConv1d<B> {
    const NAME: &'static str = "causal_conv1d";

    fn check(&self) -> Result<()> {
        let [rows, channels] = self.x.shape();
        let width = self.weight.cols();
        check::activation(Self::NAME, "x", &self.x, [rows, channels], "rows, channels")?;
        check::f32(Self::NAME, "weight", &self.weight, [channels, width], "channels, width")?;
        check::ensure(Self::NAME, (2..=8).contains(&width), || {
            format!("width is {width}, want 2 to 8")
        })?;
        if let Some(bias) = &self.bias {
            check::f32(Self::NAME, "bias", bias, [1, channels], "1, channels")?;
        }
        let slots = self.state.rows() / channels.max(1);
        check::f32(
            Self::NAME,
            "state",
            &self.state,
            [slots * channels, width - 1],
            "slots * channels, width - 1",
        )?;
        check::segments(Self::NAME, &self.segments, rows)?;
        check::activation(Self::NAME, "out", &self.out, [rows, channels], "shape of x")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        let mut list = vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("weight", &self.weight, Access::Read),
        ];
        list.extend(self.bias.iter().map(|b| Operand::Tensor("bias", b, Access::Read)));
        list.push(Operand::Tensor("state", &self.state, Access::Update));
        list.push(Operand::Tensor("out", &self.out, Access::Write));
        list
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.causal_conv1d(self)
    }
}

impl CausalConv1d<Cpu> {
    /// The definition. Rows of no segment are left as they are.
    pub fn reference(&self) {
        let channels = self.x.cols();
        let width = self.weight.cols();
        let (x, weight, mut state) = (self.x.dense(), self.weight.dense(), self.state.dense());
        let bias = self.bias.as_ref().map(Tensor::dense);
        let mut out = self.out.dense();
        for segment in self.segments.list() {
            for c in 0..channels {
                let window = &mut state[(segment.slot * channels + c) * (width - 1)..][..width - 1];
                if segment.fresh() {
                    window.fill(0.0);
                }
                for row in segment.rows() {
                    let current = x[row * channels + c];
                    let taps = &weight[c * width..][..width];
                    let mut sum = bias.as_ref().map_or(0.0, |b| b[c]) + taps[width - 1] * current;
                    sum += window.iter().zip(taps).map(|(x, w)| x * w).sum::<f32>();
                    out[row * channels + c] = self.activation.apply(sum);
                    window.rotate_left(1);
                    window[width - 2] = current;
                }
            }
        }
        self.state.fill(&state);
        self.out.fill(&out);
    }
}

/// A batch and a convolution.
pub(super) struct CausalConv1dCase {
    ragged: Ragged,
    channels: usize,
    width: usize,
    bias: bool,
    activation: Activation,
}

/// Every width in every batch, tile edges of channels, a real model's, with and without bias and activation.
pub(super) fn cases() -> Vec<CausalConv1dCase> {
    let case = |ragged, channels, width| CausalConv1dCase {
        ragged,
        channels,
        width,
        bias: true,
        activation: Activation::Silu,
    };
    let mut cases = Vec::new();
    for ragged in Ragged::ALL {
        cases.extend((2..=8).map(|width| case(ragged, 40, width)));
    }
    cases.extend([1, 31, 63, 64, 65, 128, 129, 256].map(|c| case(Ragged::MIXED, c, 4)));
    cases.extend([6144, 1792].map(|channels| case(Ragged::DECODE, channels, 4)));
    let identity = Activation::Identity;
    cases.push(CausalConv1dCase { bias: false, ..case(Ragged::MIXED, 96, 4) });
    cases.push(CausalConv1dCase { activation: identity, ..case(Ragged::MIXED, 96, 4) });
    cases.push(CausalConv1dCase { activation: identity, bias: false, ..case(Ragged::LONG, 24, 3) });
    cases
}

impl Case for CausalConv1dCase {
    fn name(&self) -> String {
        let Self { ragged, channels, width, bias, activation } = self;
        let bias = if *bias { "bias" } else { "no bias" };
        format!("{channels} channels width {width} {bias} {activation:?}, {}", ragged.name())
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let (rows, channels, width) = (self.ragged.rows(), self.channels, self.width);
        let bias =
            self.bias.then(|| rig.param("bias", 1, channels, Fill::Normal(0.5))).transpose()?;
        let mut stream = rig.stream("state");
        let state = self.ragged.recurrent(&mut stream, Fill::Normal(1.0), channels * (width - 1));
        let shape = [self.ragged.slots * channels, width - 1];
        rig.step().run(&CausalConv1d {
            x: rig.activation("x", rows, channels, Fill::Normal(1.0))?,
            weight: rig.param("weight", channels, width, Fill::Normal(0.5))?,
            bias,
            activation: self.activation,
            // Raw inputs, moved and never computed.
            state: rig.state_of("state", shape, DType::F32, &state, Tolerance::EXACT)?,
            segments: rig.segments(&self.ragged)?,
            out: rig.output("out", rows, channels, rig.activations(), Tolerance::F32)?,
        })
    }
}
