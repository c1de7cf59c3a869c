//! A model as data: a flat list of blocks `x += scale * sum(mixer(norm(x)))`, each naming its tensors.
//!
//! A family turns a checkpoint's config into a [`ModelSpec`]; loading, planning and running read it and nothing else.

use crate::ops::{Activation, GateOrder, RouteRule};

/// A weight matrix, or a bank of one matrix an expert, by the names of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightRef {
    /// Stems of the tensors, `.weight` and the like included: one, or one an expert.
    pub names: Vec<String>,
    /// Outputs of one matrix.
    pub rows: usize,
    /// Inputs of one matrix.
    pub cols: usize,
}

impl WeightRef {
    /// One matrix `[rows, cols]`.
    pub fn one(name: impl Into<String>, rows: usize, cols: usize) -> Self {
        Self { names: vec![name.into()], rows, cols }
    }
}

/// A small parameter that ops read as f32, whatever it is stored as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamRef {
    /// Name of the tensor.
    pub name: String,
    /// Rows that the op sees.
    pub rows: usize,
    /// Columns that the op sees; the stored shape may group the same elements otherwise.
    pub cols: usize,
}

impl ParamRef {
    /// A parameter `[rows, cols]`.
    pub fn new(name: impl Into<String>, rows: usize, cols: usize) -> Self {
        Self { name: name.into(), rows, cols }
    }
}

/// A linear layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearSpec {
    /// `[outputs, inputs]`
    pub weight: WeightRef,
    /// `[1, outputs]`
    pub bias: Option<ParamRef>,
}

/// A root-mean-square norm.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// `[1, cols]`
    pub weight: ParamRef,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// A Mamba2 mixer. The input projection's rows are `z | x | B | C | dt`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2Spec {
    /// Heads of the recurrence.
    pub heads: usize,
    /// Width of one head; the inner width is `heads * head_dim`.
    pub head_dim: usize,
    /// State of one channel.
    pub state_size: usize,
    /// Groups of heads that share `B` and `C`; also the groups of the gated norm.
    pub groups: usize,
    /// Taps of the convolution.
    pub conv_width: usize,
    /// Bounds of dt after softplus.
    pub dt_limit: [f32; 2],
    /// `[2 * inner + 2 * groups * state + heads, hidden]`
    pub in_proj: LinearSpec,
    /// `[inner + 2 * groups * state, conv_width]`
    pub conv_weight: ParamRef,
    /// `[1, inner + 2 * groups * state]`
    pub conv_bias: Option<ParamRef>,
    /// `[1, heads]`
    pub a_log: ParamRef,
    /// `[1, heads]`
    pub d: ParamRef,
    /// `[1, heads]`
    pub dt_bias: ParamRef,
    /// Gated norm over `inner`.
    pub norm: NormSpec,
    /// Gate before or after that norm.
    pub gate_order: GateOrder,
    /// `[hidden, inner]`
    pub out_proj: LinearSpec,
}

impl Mamba2Spec {
    /// `heads * head_dim`.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of the convolution: `x | B | C`.
    pub fn conv_channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_size
    }

    /// Rows of the input projection.
    pub fn projection(&self) -> usize {
        self.inner() + self.conv_channels() + self.heads
    }
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Angle per position of every rotated pair; `None` for models without position embedding.
    pub rope: Option<Vec<f32>>,
    /// `[heads * head_dim, hidden]`
    pub q: LinearSpec,
    /// `[kv_heads * head_dim, hidden]`
    pub k: LinearSpec,
    /// `[kv_heads * head_dim, hidden]`
    pub v: LinearSpec,
    /// `[hidden, heads * head_dim]`
    pub o: LinearSpec,
}

impl AttentionSpec {
    /// Elements of one token's keys, and of its values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// A feed-forward layer: `down(f(up x))`, or `down(f(gate x) * up x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Inner width.
    pub width: usize,
    /// The function.
    pub activation: Activation,
    /// `[width, hidden]`, for gated pairs.
    pub gate: Option<LinearSpec>,
    /// `[width, hidden]`
    pub up: LinearSpec,
    /// `[hidden, width]`
    pub down: LinearSpec,
}

/// The projections around experts that live at a smaller width.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentSpec {
    /// Width that the experts see.
    pub width: usize,
    /// `[width, hidden]`
    pub into: LinearSpec,
    /// `[hidden, width]`
    pub out: LinearSpec,
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Experts that rows are routed to.
    pub experts: usize,
    /// Inner width of one.
    pub width: usize,
    /// How they are chosen.
    pub rule: RouteRule,
    /// `[experts, hidden]`
    pub router: WeightRef,
    /// Added for the choice only. `[1, experts]`
    pub router_bias: Option<ParamRef>,
    /// The function of the experts.
    pub activation: Activation,
    /// `experts x [width, input]`, for gated pairs.
    pub gate: Option<WeightRef>,
    /// `experts x [width, input]`
    pub up: WeightRef,
    /// `experts x [input, width]`
    pub down: WeightRef,
    /// Projections around the experts, where they live at another width.
    pub latent: Option<LatentSpec>,
    /// The expert that every row meets.
    pub shared: Option<MlpSpec>,
}

impl MoeSpec {
    /// Width of the experts' inputs and outputs.
    pub fn expert_width(&self) -> usize {
        self.up.cols
    }
}

/// What a block adds to the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub enum MixerSpec {
    /// Selective state space.
    Mamba2(Mamba2Spec),
    /// Attention.
    Attention(AttentionSpec),
    /// Feed-forward.
    Mlp(MlpSpec),
    /// Mixture of experts.
    Moe(Box<MoeSpec>),
}

impl MixerSpec {
    /// Short name for tables: `mamba2`, `attention`, `mlp`, `moe`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mamba2(_) => "mamba2",
            Self::Attention(_) => "attention",
            Self::Mlp(_) => "mlp",
            Self::Moe(_) => "moe",
        }
    }
}

/// `x += scale * sum(mixer(norm(x)))`.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSpec {
    /// Over the residual stream.
    pub norm: NormSpec,
    /// Residual multiplier of the family, 1 for most.
    pub scale: f32,
    /// Run on the same normed input; their outputs are summed.
    pub mixers: Vec<MixerSpec>,
}

/// A whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `model_type` of the config.
    pub family: &'static str,
    /// Token ids lie below this.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Longest sequence that the checkpoint was made for, in tokens.
    pub context: usize,
    /// `[vocabulary, hidden]`
    pub embedding: WeightRef,
    /// Embedding multiplier, 1 for most.
    pub embedding_scale: f32,
    /// In order.
    pub blocks: Vec<BlockSpec>,
    /// Before the head.
    pub final_norm: NormSpec,
    /// `[vocabulary, hidden]`; the embedding itself where the two are tied.
    pub head: WeightRef,
    /// Multiplies the logits, 1 for most.
    pub logit_scale: f32,
    /// Prefixes of tensors that the family knows and does not run, with the reason.
    pub unused: Vec<(String, &'static str)>,
}

impl ModelSpec {
    /// Every weight once, in the order of loading. A tied head is not listed again.
    pub fn weights(&self) -> Vec<&WeightRef> {
        let mut list = vec![&self.embedding];
        for mixer in self.blocks.iter().flat_map(|b| &b.mixers) {
            mixer.weights(&mut list);
        }
        if self.head != self.embedding {
            list.push(&self.head);
        }
        list
    }

    /// Every small parameter, in the order of loading.
    pub fn params(&self) -> Vec<&ParamRef> {
        let mut list = Vec::new();
        for block in &self.blocks {
            list.push(&block.norm.weight);
            block.mixers.iter().for_each(|m| m.params(&mut list));
        }
        list.push(&self.final_norm.weight);
        list
    }
}

impl LinearSpec {
    fn visit<'a>(&'a self, list: &mut Vec<&'a ParamRef>) {
        list.extend(&self.bias);
    }
}

impl MlpSpec {
    fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.gate.iter().chain([&self.up, &self.down])
    }
}

impl MixerSpec {
    fn linears(&self) -> Vec<&LinearSpec> {
        match self {
            Self::Mamba2(m) => vec![&m.in_proj, &m.out_proj],
            Self::Attention(a) => vec![&a.q, &a.k, &a.v, &a.o],
            Self::Mlp(m) => m.linears().collect(),
            Self::Moe(m) => {
                let latent = m.latent.iter().flat_map(|l| [&l.into, &l.out]);
                latent.chain(m.shared.iter().flat_map(MlpSpec::linears)).collect()
            }
        }
    }

    fn weights<'a>(&'a self, list: &mut Vec<&'a WeightRef>) {
        if let Self::Moe(m) = self {
            list.push(&m.router);
            list.extend(m.gate.iter().chain([&m.up, &m.down]));
        }
        list.extend(self.linears().into_iter().map(|l| &l.weight));
    }

    /// Parameters of heads that the scan reads as one operand, and devices hold in one buffer.
    pub fn head_params(&self) -> Vec<&ParamRef> {
        match self {
            Self::Mamba2(m) => vec![&m.a_log, &m.d, &m.dt_bias],
            Self::Attention(_) | Self::Mlp(_) | Self::Moe(_) => Vec::new(),
        }
    }

    fn params<'a>(&'a self, list: &mut Vec<&'a ParamRef>) {
        match self {
            Self::Mamba2(m) => {
                list.push(&m.conv_weight);
                list.extend(&m.conv_bias);
                list.extend([&m.a_log, &m.d, &m.dt_bias, &m.norm.weight]);
            }
            Self::Moe(m) => list.extend(&m.router_bias),
            Self::Attention(_) | Self::Mlp(_) => {}
        }
        self.linears().into_iter().for_each(|l| l.visit(list));
    }
}

impl BlockSpec {
    /// Every weight of the block.
    pub fn weights(&self) -> Vec<&WeightRef> {
        let mut list = Vec::new();
        self.mixers.iter().for_each(|m| m.weights(&mut list));
        list
    }

    /// Every small parameter of the block.
    pub fn params(&self) -> Vec<&ParamRef> {
        let mut list = vec![&self.norm.weight];
        self.mixers.iter().for_each(|m| m.params(&mut list));
        list
    }
}
