//! The least that a model must move or compute for a token: what a measured speed is a share of.

use crate::backend::Policy;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::model::spec::{AttentionSpec, MixerSpec, MoeSpec, WeightRef};
use crate::model::state::{kv_bytes, state_bytes};

/// Counts of one model on one back end.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Bytes of weights and parameters that every step reads.
    shared_bytes: f64,
    /// Routed experts, layer by layer.
    routed: Vec<Routed>,
    /// Bytes of recurrent state of one sequence.
    state_bytes: f64,
    /// Bytes of keys and values of one token.
    kv_bytes: f64,
    /// Operations of the products of one token, without the head.
    product_operations: f64,
    /// Operations of attention for one token and one position that it sees.
    attention_operations: f64,
    /// Operations of the head for one row.
    head_operations: f64,
}

#[derive(Clone, Debug, PartialEq)]
struct Routed {
    experts: f64,
    top_k: f64,
    /// Bytes of one expert.
    bytes: f64,
}

impl Work {
    /// Counts `checkpoint`, with or without weights.
    ///
    /// # Errors
    /// As [`Checkpoint::describe`].
    pub fn new(checkpoint: &Checkpoint, policy: &Policy) -> Result<Self> {
        let spec = checkpoint.spec();
        let bytes = |weight: &WeightRef| Ok(checkpoint.describe(weight)?.bytes() as f64);
        let mut work = Self {
            shared_bytes: bytes(&spec.head)?,
            routed: Vec::new(),
            state_bytes: state_bytes(spec, policy) as f64,
            kv_bytes: kv_bytes(spec, policy) as f64,
            product_operations: 0.0,
            attention_operations: 0.0,
            head_operations: operations(&spec.head),
        };
        for block in &spec.blocks {
            for weight in block.weights() {
                work.shared_bytes += bytes(weight)?;
                work.product_operations += operations(weight);
            }
            let params = block.params();
            work.shared_bytes += params.iter().map(|p| (p.rows * p.cols * 4) as f64).sum::<f64>();
            for mixer in &block.mixers {
                match mixer {
                    MixerSpec::Moe(moe) => work.route(moe, bytes)?,
                    MixerSpec::Attention(a) => work.attention_operations += attention(a),
                    MixerSpec::Mamba2(_) | MixerSpec::Mlp(_) => {}
                }
            }
        }
        Ok(work)
    }

    /// Takes the experts out of what every step reads: a step reads those that its tokens chose.
    fn route(&mut self, moe: &MoeSpec, bytes: impl Fn(&WeightRef) -> Result<f64>) -> Result<()> {
        let (experts, top_k) = (moe.experts as f64, moe.rule.top_k as f64);
        let mut all = 0.0;
        for weight in moe.gate.iter().chain([&moe.up, &moe.down]) {
            all += bytes(weight)?;
            // `operations` counted one matrix of the bank.
            self.product_operations += (top_k - 1.0) * operations(weight);
        }
        self.shared_bytes -= all;
        self.routed.push(Routed { experts, top_k, bytes: all / experts });
        Ok(())
    }

    /// Bytes that one decode step of `sequences` sequences with `context` tokens each reads and writes: weights, of
    /// the experts those that a uniform choice is expected to hit, state twice, keys and values once.
    pub fn decode_bytes(&self, sequences: usize, context: usize) -> f64 {
        let (n, context) = (sequences as f64, context as f64);
        let experts: f64 = self.routed.iter().map(|r| r.hit(n) * r.bytes).sum();
        self.shared_bytes + experts + n * (2.0 * self.state_bytes + self.kv_bytes * context)
    }

    /// Experts of a layer that a step of `sequences` tokens is expected to hit, where there are any.
    pub fn experts_hit(&self, sequences: usize) -> Option<f64> {
        self.routed.first().map(|routed| routed.hit(sequences as f64))
    }

    /// Operations of a prompt: its products, attention over what each token sees, one row of the head.
    pub fn prefill_operations(&self, tokens: usize) -> f64 {
        let tokens = tokens as f64;
        tokens * self.product_operations
            + tokens * (tokens + 1.0) / 2.0 * self.attention_operations
            + self.head_operations
    }
}

impl Routed {
    /// Expected number of distinct experts.
    fn hit(&self, tokens: f64) -> f64 {
        self.experts * (1.0 - (1.0 - self.top_k / self.experts).powf(tokens))
    }
}

/// A multiplication and an addition for every element.
fn operations(weight: &WeightRef) -> f64 {
    2.0 * weight.rows as f64 * weight.cols as f64
}

/// Scores and weighted sums, for each position.
fn attention(spec: &AttentionSpec) -> f64 {
    4.0 * (spec.heads * spec.head_dim) as f64
}
