//! The next token of each row: the best, or one drawn by weight from all columns or from sorted candidates.

use super::check;
use crate::backend::Backend;
use crate::conformance::{Case, Fill, Rig};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::sampling::{DrawRow, MOST_CANDIDATES, choose};
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

/// Words of a [`DrawRow`].
pub const DRAW_WORDS: usize = size_of::<DrawRow>() / 4;

/// `out[r]` is chosen by `rows[r]`: weights are `exp((x - max x) / temperature)`, and the column is the first at which
/// their running sum passes a random number's share of the whole. Candidates of a row come best first, as
/// [`super::TopK`] leaves them; without them every column is one, in order, and rows name no `top_p`, nor a `top_k` but 1.
///
/// Sums are f64 in the reference; a device with another order or f32 differs where the number falls on an edge. A row
/// with a NaN or an infinity, or with nothing but -inf, gives `u32::MAX`.
pub struct Draw<B: Backend> {
    /// Logits. `[rows, cols] f32`
    pub x: Tensor<B>,
    /// The column of each where they are candidates. `[rows, cols] u32`
    pub columns: Option<Tensor<B>>,
    /// A [`DrawRow`] each; its state moves on with a draw. `[rows, 8] u32`
    pub rows: Tensor<B>,
    /// The tokens. `[rows, 1] u32`
    pub out: Tensor<B>,
}

impl<B: Backend> Op<B> for Draw<B> {
    const NAME: &'static str = "draw";

    fn check(&self) -> Result<()> {
        let [rows, cols] = self.x.shape();
        check::f32(Self::NAME, "x", &self.x, [rows, cols], "rows, cols")?;
        check::ensure(Self::NAME, cols > 0, || "x has no columns".into())?;
        if let Some(columns) = &self.columns {
            check::u32(Self::NAME, "columns", columns, [rows, cols], "rows of x, cols of x")?;
            let most = crate::batch::to_usize(MOST_CANDIDATES);
            check::ensure(Self::NAME, cols <= most, || {
                format!("{cols} candidates, want at most {most}")
            })?;
        }
        check::u32(Self::NAME, "rows", &self.rows, [rows, DRAW_WORDS], "rows of x, 8")?;
        check::u32(Self::NAME, "out", &self.out, [rows, 1], "rows of x, 1")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        let columns = self.columns.iter().map(|c| Operand::Tensor("columns", c, Access::Read));
        let mut list = vec![Operand::Tensor("x", &self.x, Access::Read)];
        list.extend(columns);
        list.push(Operand::Tensor("rows", &self.rows, Access::Update));
        list.push(Operand::Tensor("out", &self.out, Access::Write));
        list
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.draw(self)
    }
}

impl Draw<Cpu> {
    /// The definition.
    pub fn reference(&self) {
        let cols = self.x.cols();
        let columns = self.columns.as_ref().map(|c| c.dense_u32());
        let mut rows: Vec<DrawRow> = bytemuck::pod_collect_to_vec(&self.rows.dense_u32());
        let mut out = Vec::with_capacity(rows.len());
        for (index, (x, row)) in self.x.dense().chunks(cols).zip(&mut rows).enumerate() {
            let (all, cut) = (row.top_k, row.top_p);
            let count = match (&columns, all) {
                (Some(_), 1..) => cols.min(crate::batch::to_usize(all)),
                _ => cols,
            };
            if columns.is_none() {
                row.top_p = 1.0;
            }
            let column = |i: usize| match &columns {
                Some(columns) => columns[index * cols + i],
                // A column index of an f32 row in memory fits u32.
                None => i as u32,
            };
            let mut candidates: Vec<_> = (0..count).map(|i| (column(i), x[i])).collect();
            let usable = candidates.iter().all(|(_, v)| *v < f32::INFINITY);
            let token = if usable { choose(&mut candidates, row) } else { None };
            row.top_p = cut;
            out.push(token.unwrap_or(u32::MAX));
        }
        self.rows.fill_u32(bytemuck::cast_slice(&rows));
        self.out.fill_u32(&out);
    }
}

/// What the logits of a case look like.
#[derive(Clone, Copy, Debug)]
enum Logits {
    /// No two alike.
    Normal,
    /// Small whole numbers: many share the best.
    Ties,
    /// The best in the last column, the others far below.
    LastColumn,
    /// Two of three columns excluded.
    Excluded,
    /// Rows in turn: NaN in a column, an infinity, all excluded, as they should be.
    Unusable,
}

/// A shape, whether its columns are candidates, and how the logits are drawn.
pub(super) struct DrawCase {
    shape: [usize; 2],
    candidates: bool,
    logits: Logits,
}

/// Single columns, tile edges, vocabularies; every way to choose in turn from row to row.
pub(super) fn cases() -> Vec<DrawCase> {
    let shapes = [
        ([1, 1], false),
        ([14, 33], false),
        ([9, 1025], false),
        ([2, 65_537], false),
        ([3, 131_072], false),
        ([2, 1], true),
        ([14, 40], true),
        ([9, 64], true),
        ([14, 1024], true),
    ];
    let mut cases = Vec::new();
    for logits in
        [Logits::Normal, Logits::Ties, Logits::LastColumn, Logits::Excluded, Logits::Unusable]
    {
        cases.extend(shapes.map(|(shape, candidates)| DrawCase { shape, candidates, logits }));
    }
    cases
}

impl DrawCase {
    fn values(&self, stream: &mut crate::conformance::Stream) -> Vec<f32> {
        let [rows, cols] = self.shape;
        let normal = stream.values(Fill::Normal(4.0), rows * cols);
        let mut value = |i: usize| match self.logits {
            Logits::Ties => stream.below(5) as f32 + 1.0,
            Logits::LastColumn if i % cols + 1 < cols => normal[i] - 40.0,
            Logits::Excluded if i % cols % 3 != 1 && cols > 1 => f32::NEG_INFINITY,
            Logits::Unusable => match (i / cols % 4, i % cols) {
                (0, col) if col == cols / 2 => f32::NAN,
                (1, col) if col + 1 == cols => f32::INFINITY,
                (2, _) => f32::NEG_INFINITY,
                _ => normal[i],
            },
            _ => normal[i],
        };
        let mut values: Vec<f32> = (0..rows * cols).map(&mut value).collect();
        if self.candidates {
            for row in values.chunks_mut(cols) {
                row.sort_by(|a, b| b.total_cmp(a));
            }
        }
        values
    }

    fn rows(&self, stream: &mut crate::conformance::Stream) -> Vec<u32> {
        let ways = [
            (1.0, 0, 1.0, 0.0),
            (0.0, 0, 1.0, 0.0),
            (0.6, 0, 1.0, 0.05),
            (2.5, 1, 1.0, 0.0),
            (1.3, 20, 0.95, 0.0),
            (0.9, 0, 0.5, 0.02),
            (1e-30, 7, 0.1, 1.0),
        ];
        let row = |i: usize| {
            let (temperature, top_k, top_p, min_p) = ways[i % ways.len()];
            // Without candidates neither is asked for.
            let (top_k, top_p) = if self.candidates { (top_k, top_p) } else { (top_k.min(1), 1.0) };
            let state = [stream.below(u32::MAX), stream.below(u32::MAX)];
            DrawRow { temperature, top_k, top_p, min_p, state, spare: [0; 2] }
        };
        let rows: Vec<DrawRow> = (0..self.shape[0]).map(row).collect();
        bytemuck::cast_slice(&rows).to_vec()
    }
}

impl Case for DrawCase {
    fn name(&self) -> String {
        let of = if self.candidates { "candidates" } else { "columns" };
        format!("{:?} {of} {:?}", self.shape, self.logits)
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let values = self.values(&mut rig.stream("x"));
        let [rows, cols] = self.shape;
        let columns = if self.candidates {
            // Any distinct numbers: what is chosen is one of them.
            let ids: Vec<u32> = (0..rows * cols).map(|i| (i * 7 + 3) as u32).collect();
            Some(rig.table("columns", rows, cols, &ids)?)
        } else {
            None
        };
        rig.step().run(&Draw {
            x: rig.input_of("x", self.shape, DType::F32, &values)?,
            columns,
            rows: rig.watched_u32(
                "rows",
                [rows, DRAW_WORDS],
                &self.rows(&mut rig.stream("rows")),
            )?,
            out: rig.output_u32("out", rows, 1)?,
        })
    }
}
