//! Causal attention of each row over its sequence's cache, grouped queries.
//!
//! `out = softmax(scale * q K^T) V` over positions `0..=position` of the row's slot; query head `i` reads key/value
//! head `i / (heads / kv_heads)`. Scores, softmax and sums in f32.

use super::check;
use super::matmul::dot;
use crate::backend::Backend;
use crate::batch::Segments;
use crate::conformance::{Case, Fill, Ragged, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

/// Keys and values of one layer. Row `slot * context + position` holds one token.
pub struct KvCache<B: Backend> {
    /// Keys. `[slots * context, kv_heads * head_dim]`
    pub k: Tensor<B>,
    /// Values. `[slots * context, kv_heads * head_dim]`
    pub v: Tensor<B>,
    /// Rows of one slot.
    pub context: usize,
}

impl<B: Backend> Clone for KvCache<B> {
    fn clone(&self) -> Self {
        Self { k: self.k.clone(), v: self.v.clone(), context: self.context }
    }
}

impl<B: Backend> KvCache<B> {
    pub(super) fn check(&self, op: &str, cols: usize) -> Result<()> {
        const STORED: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::F8E4M3];
        let slots = self.k.rows() / self.context.max(1);
        for (name, tensor) in [("cache.k", &self.k), ("cache.v", &self.v)] {
            check::dtype(op, name, tensor, &STORED)?;
            check::shape(
                op,
                name,
                tensor,
                [slots * self.context, cols],
                "slots * context, kv_heads * head_dim",
            )?;
        }
        Ok(())
    }
}

/// Attention over the cache, to which [`super::KvAppend`] has added the step's own rows.
pub struct Attention<B: Backend> {
    /// Queries. `[rows, heads * head_dim]`
    pub q: Tensor<B>,
    /// The layer's cache.
    pub cache: KvCache<B>,
    /// Width of one head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Which rows are whose.
    pub segments: Segments<B>,
    /// Output. `[rows, heads * head_dim]`
    pub out: Tensor<B>,
}

impl<B: Backend> Attention<B> {
    /// Number of query heads.
    pub fn heads(&self) -> usize {
        self.q.cols() / self.head_dim
    }

    /// Number of key/value heads.
    pub fn kv_heads(&self) -> usize {
        self.cache.k.cols() / self.head_dim
    }
}

impl<B: Backend> Op<B> for Attention<B> {
    const NAME: &'static str = "attention";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.q.shape();
        check::ensure(Self::NAME, (1..=256).contains(&self.head_dim), || {
            format!("head_dim is {}, want 1 to 256", self.head_dim)
        })?;
        let (heads, kv_heads) = (self.heads(), self.kv_heads());
        check::ensure(
            Self::NAME,
            kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads),
            || format!("{kv_heads} kv heads do not divide {heads} heads"),
        )?;
        check::activation(
            Self::NAME,
            "q",
            &self.q,
            [rows, heads * self.head_dim],
            "rows, heads * head_dim",
        )?;
        self.cache.check(Self::NAME, kv_heads * self.head_dim)?;
        check::segments(Self::NAME, &self.segments, rows)?;
        check::activation(Self::NAME, "out", &self.out, [rows, cols], "shape of q")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("q", &self.q, Access::Read),
            Operand::Tensor("cache.k", &self.cache.k, Access::Read),
            Operand::Tensor("cache.v", &self.cache.v, Access::Read),
            Operand::Tensor("out", &self.out, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.attention(self)
    }
}

impl Attention<Cpu> {
    /// The definition. Rows of no segment are left as they are.
    pub fn reference(&self) {
        let (heads, kv_heads, width) = (self.heads(), self.kv_heads(), self.head_dim);
        let q = self.q.dense();
        let mut out = self.out.dense();
        for segment in self.segments.list() {
            let rows = segment.position + segment.len;
            let start = segment.slot * self.cache.context;
            let k = self.cache.k.row_range(start, rows).dense();
            let v = self.cache.v.row_range(start, rows).dense();
            for row in segment.rows() {
                let seen = segment.position + row - segment.first_row + 1;
                for head in 0..heads {
                    let kv = |t: usize| (t * kv_heads + head / (heads / kv_heads)) * width;
                    let query = &q[(row * heads + head) * width..][..width];
                    let scores: Vec<f32> =
                        (0..seen).map(|t| self.scale * dot(query, &k[kv(t)..][..width])).collect();
                    let weights = softmax(&scores);
                    for i in 0..width {
                        let sum: f32 =
                            weights.iter().enumerate().map(|(t, w)| w * v[kv(t) + i]).sum();
                        out[(row * heads + head) * width + i] = sum;
                    }
                }
            }
        }
        self.out.fill(&out);
    }
}

/// `exp(x - max) / sum`.
pub(super) fn softmax(scores: &[f32]) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f32 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}

/// A batch, the sizes of a layer, the cache's dtype and how sharp the scores are.
pub(super) struct AttentionCase {
    ragged: Ragged,
    /// Query heads, key/value heads, width of a head.
    sizes: [usize; 3],
    stored: DType,
    query: f32,
}

/// History of 700 tokens beside a fresh prompt and a single step.
const DEEP: Ragged =
    Ragged { slots: 4, context: 704, list: &[(2, 1, 697), (40, 0, 0), (1, 3, 300)], padding: 2 };

/// Ratios 1, 4 and 16, widths of families, every batch, deep history, sharp scores.
pub(super) fn cases() -> Vec<AttentionCase> {
    let mut cases = Vec::new();
    for stored in [DType::F32, DType::BF16] {
        let case = |ragged, sizes, query| AttentionCase { ragged, sizes, stored, query };
        for ragged in [Ragged::FIRST, Ragged::DECODE, Ragged::MIXED] {
            let sizes =
                [[2, 2, 24], [4, 1, 64], [16, 1, 80], [8, 2, 96], [16, 4, 128], [3, 3, 256]];
            cases.extend(sizes.map(|sizes| case(ragged, sizes, 1.0)));
        }
        cases.push(case(Ragged::LONG, [4, 1, 24], 1.0));
        cases.push(case(DEEP, [4, 1, 64], 1.0));
        cases.push(case(DEEP, [16, 1, 128], 1.0));
        cases.push(case(Ragged::MIXED, [4, 2, 64], 40.0));
        cases.push(case(Ragged::MIXED, [4, 2, 64], 0.0));
    }
    cases
}

impl Case for AttentionCase {
    fn name(&self) -> String {
        let ([heads, kv_heads, width], stored) = (self.sizes, self.stored);
        let batch = self.ragged.name();
        format!(
            "{heads} over {kv_heads} heads of {width} in {stored}, queries {}, {batch}",
            self.query
        )
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let ([heads, kv_heads, head_dim], ragged) = (self.sizes, &self.ragged);
        let rows = ragged.rows();
        let cache = |name| {
            let values = ragged.appended_cache(&mut rig.stream(name), kv_heads * head_dim);
            let shape = [ragged.slots * ragged.context, kv_heads * head_dim];
            rig.state_of(name, shape, self.stored, &values, Tolerance::EXACT)
        };
        // A score of size `query` carries an error of that size into the exponent of its weight.
        let tolerance = Tolerance::F32.scaled(self.query.max(1.0));
        let dtype = rig.activations();
        rig.step().run(&Attention {
            q: rig.activation("q", rows, heads * head_dim, Fill::Normal(self.query))?,
            cache: KvCache { k: cache("cache.k")?, v: cache("cache.v")?, context: ragged.context },
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            segments: rig.segments(ragged)?,
            out: rig.output("out", rows, heads * head_dim, dtype, tolerance)?,
        })
    }
}
