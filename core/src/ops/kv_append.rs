//! Stores each row's key and value at its position in its slot's cache.

use super::attention::KvCache;
use super::check;
use crate::backend::Backend;
use crate::batch::Segments;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::Tensor;

/// Appends keys and values, rounded to the cache's dtype. Padding rows write nowhere.
pub struct KvAppend<B: Backend> {
    /// Keys. `[rows, kv_heads * head_dim]`
    pub k: Tensor<B>,
    /// Values. `[rows, kv_heads * head_dim]`
    pub v: Tensor<B>,
    /// The layer's cache.
    pub cache: KvCache<B>,
    /// Which rows are whose.
    pub segments: Segments<B>,
}

impl<B: Backend> Op<B> for KvAppend<B> {
    const NAME: &'static str = "kv_append";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.k.shape();
        check::activation(Self::NAME, "k", &self.k, [rows, cols], "rows, kv_heads * head_dim")?;
        check::activation(Self::NAME, "v", &self.v, [rows, cols], "shape of k")?;
        self.cache.check(Self::NAME, cols)?;
        check::segments(Self::NAME, &self.segments, rows)
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("k", &self.k, Access::Read),
            Operand::Tensor("v", &self.v, Access::Read),
            Operand::Tensor("cache.k", &self.cache.k, Access::Update),
            Operand::Tensor("cache.v", &self.cache.v, Access::Update),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.kv_append(self)
    }
}

impl KvAppend<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let context = self.cache.context;
        for (new, cache) in [(&self.k, &self.cache.k), (&self.v, &self.cache.v)] {
            for segment in self.segments.list() {
                let start = segment.slot * context + segment.position;
                let rows = new.row_range(segment.first_row, segment.len).dense();
                cache.row_range(start, segment.len).fill(&rows);
            }
        }
    }
}
