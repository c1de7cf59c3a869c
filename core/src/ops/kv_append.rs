//! Stores each row's key and value at its position in its slot's cache.

use super::attention::KvCache;
use super::check;
use crate::backend::Backend;
use crate::batch::Segments;
use crate::conformance::{Case, Fill, Ragged, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

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

/// A batch, the width of a token's keys and the cache's dtype.
pub(super) struct KvAppendCase {
    ragged: Ragged,
    cols: usize,
    stored: DType,
}

/// Every batch, tile edges of columns, f32 and narrow caches.
pub(super) fn cases() -> Vec<KvAppendCase> {
    let mut cases = Vec::new();
    for stored in [DType::F32, DType::BF16] {
        for ragged in Ragged::ALL {
            cases.extend([24, 64, 129].map(|cols| KvAppendCase { ragged, cols, stored }));
        }
        cases.push(KvAppendCase { ragged: Ragged::DECODE, cols: 1024, stored });
    }
    cases
}

impl Case for KvAppendCase {
    fn name(&self) -> String {
        format!("{} columns in {}, {}", self.cols, self.stored, self.ragged.name())
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let (rows, cols, ragged) = (self.ragged.rows(), self.cols, &self.ragged);
        let cache = |name| {
            let values = ragged.cache(&mut rig.stream(name), cols);
            let shape = [ragged.slots * ragged.context, cols];
            rig.state_of(name, shape, self.stored, &values, Tolerance::EXACT)
        };
        rig.step().run(&KvAppend {
            k: rig.activation("k", rows, cols, Fill::Normal(1.0))?,
            v: rig.activation("v", rows, cols, Fill::Normal(1.0))?,
            cache: KvCache { k: cache("cache.k")?, v: cache("cache.v")?, context: ragged.context },
            segments: rig.segments(ragged)?,
        })
    }
}
