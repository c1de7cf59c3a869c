//! Mamba2's recurrence (Dao and Gu 2024, "Transformers are SSMs", section 7), one state a head:
//!
//! ```text
//! dt = clamp(softplus(dt + dt_bias), dt_limit)        a = exp(-exp(A_log) * dt)
//! S <- a * S + dt * x B^T                             y = S C + D * x
//! ```
//!
//! `S` is `[head_dim, state]`, carried from row to row of a segment and from step to step in its slot. Head `h` reads
//! the `B` and `C` of group `h / (heads / groups)`. The sequential form is the definition; a chunked kernel is a faster
//! implementation of it. Everything is f32; a state that is kept in bf16 is rounded once, at the end of a segment.

use super::check;
use crate::backend::Backend;
use crate::batch::Segments;
use crate::conformance::{Case, Fill, Ragged, Rig, Tolerance};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::step::{Access, Op, Operand};
use crate::tensor::{DType, Tensor};

/// The selective scan of a Mamba2 mixer, for prefill, decode and any mixture.
pub struct SsmScan<B: Backend> {
    /// Convolved inputs. `[rows, heads * head_dim]`
    pub x: Tensor<B>,
    /// Input projections of the state. `[rows, groups * state]`
    pub b: Tensor<B>,
    /// Output projections of the state. `[rows, groups * state]`
    pub c: Tensor<B>,
    /// Step sizes before bias and softplus. `[rows, heads]`
    pub dt: Tensor<B>,
    /// `A_log`, `D` and `dt_bias`, a row each. `[3, heads] f32`
    pub head_params: Tensor<B>,
    /// Bounds of dt after softplus.
    pub dt_limit: [f32; 2],
    /// Width of one head.
    pub head_dim: usize,
    /// Size of the state of one channel.
    pub state_size: usize,
    /// States, f32, or bf16 where the back end says so. `[slots * heads * head_dim, state]`
    pub state: Tensor<B>,
    /// Which rows are whose.
    pub segments: Segments<B>,
    /// Output. `[rows, heads * head_dim]`
    pub out: Tensor<B>,
}

impl<B: Backend> SsmScan<B> {
    /// Number of heads.
    pub fn heads(&self) -> usize {
        self.dt.cols()
    }

    /// Number of groups that share `b` and `c`.
    pub fn groups(&self) -> usize {
        self.b.cols() / self.state_size
    }
}

impl<B: Backend> Op<B> for SsmScan<B> {
    const NAME: &'static str = "ssm_scan";

    fn check(&self) -> Result<()> {
        let rows = self.x.rows();
        let heads = self.heads();
        let inner = heads * self.head_dim;
        check::ensure(Self::NAME, (1..=1024).contains(&self.state_size), || {
            format!("state size is {}, want 1 to 1024", self.state_size)
        })?;
        check::ensure(Self::NAME, (1..=256).contains(&self.head_dim), || {
            format!("head_dim is {}, want 1 to 256", self.head_dim)
        })?;
        let groups = self.groups().max(1);
        check::ensure(Self::NAME, heads > 0 && heads.is_multiple_of(groups), || {
            format!("{groups} groups do not divide {heads} heads")
        })?;
        check::activation(Self::NAME, "x", &self.x, [rows, inner], "rows, heads * head_dim")?;
        check::activation(
            Self::NAME,
            "b",
            &self.b,
            [rows, groups * self.state_size],
            "rows of x, groups * state",
        )?;
        check::activation(
            Self::NAME,
            "c",
            &self.c,
            [rows, groups * self.state_size],
            "rows of x, groups * state",
        )?;
        check::activation(Self::NAME, "dt", &self.dt, [rows, heads], "rows of x, heads")?;
        check::f32(
            Self::NAME,
            "head_params",
            &self.head_params,
            [3, heads],
            "A_log D dt_bias, heads",
        )?;
        let slots = self.state.rows() / inner.max(1);
        check::state(
            Self::NAME,
            "state",
            &self.state,
            [slots * inner, self.state_size],
            "slots * heads * head_dim, state",
        )?;
        check::segments(Self::NAME, &self.segments, rows)?;
        check::activation(Self::NAME, "out", &self.out, [rows, inner], "shape of x")
    }

    fn operands(&self) -> Vec<Operand<'_, B>> {
        vec![
            Operand::Tensor("x", &self.x, Access::Read),
            Operand::Tensor("b", &self.b, Access::Read),
            Operand::Tensor("c", &self.c, Access::Read),
            Operand::Tensor("dt", &self.dt, Access::Read),
            Operand::Tensor("head_params", &self.head_params, Access::Read),
            Operand::Tensor("state", &self.state, Access::Update),
            Operand::Tensor("out", &self.out, Access::Write),
        ]
    }

    fn encode(&self, backend: &B) -> Result<()> {
        backend.ssm_scan(self)
    }
}

/// `ln(1 + exp(x))`, linear above 20 where the two agree in f32 and the exponential would overflow.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

impl SsmScan<Cpu> {
    /// The definition. Rows of no segment are left as they are.
    pub fn reference(&self) {
        let (heads, head_dim, n) = (self.heads(), self.head_dim, self.state_size);
        let groups = self.groups();
        let (x, b, c, dt) = (self.x.dense(), self.b.dense(), self.c.dense(), self.dt.dense());
        let params = self.head_params.dense();
        let (mut state, mut out) = (self.state.dense(), self.out.dense());
        for segment in self.segments.list() {
            for head in 0..heads {
                let [a_log, d, dt_bias] = [0, 1, 2].map(|row| params[row * heads + head]);
                let group = head / (heads / groups);
                for p in 0..head_dim {
                    let channel = head * head_dim + p;
                    let s = &mut state[(segment.slot * heads * head_dim + channel) * n..][..n];
                    if segment.fresh() {
                        s.fill(0.0);
                    }
                    for row in segment.rows() {
                        let step = softplus(dt[row * heads + head] + dt_bias)
                            .clamp(self.dt_limit[0], self.dt_limit[1]);
                        let decay = (-a_log.exp() * step).exp();
                        let input = step * x[row * heads * head_dim + channel];
                        let (b, c) = (
                            &b[(row * groups + group) * n..][..n],
                            &c[(row * groups + group) * n..][..n],
                        );
                        let mut y = 0.0;
                        for i in 0..n {
                            s[i] = decay * s[i] + input * b[i];
                            y += s[i] * c[i];
                        }
                        out[row * heads * head_dim + channel] =
                            y + d * x[row * heads * head_dim + channel];
                    }
                }
            }
        }
        self.state.fill(&state);
        self.out.fill(&out);
    }
}

/// A batch, the sizes of a mixer, and its numbers.
#[derive(Clone, Copy)]
pub(super) struct SsmScanCase {
    ragged: Ragged,
    /// Heads, their width, size of the state, groups.
    sizes: [usize; 4],
    dt: Fill,
    dt_limit: [f32; 2],
    a_log: Fill,
    /// How the state is kept.
    state: DType,
}

/// Every size that families use and its neighbours in a mixed batch; long segments; extreme steps and decays; and, where
/// the back end keeps state in `states`, sizes of every form in each.
pub(super) fn cases(states: &[DType]) -> Vec<SsmScanCase> {
    let case = |ragged, sizes| SsmScanCase {
        ragged,
        sizes,
        dt: Fill::Normal(1.0),
        dt_limit: [0.0, f32::INFINITY],
        a_log: Fill::Uniform(0.0, 2.77),
        state: DType::F32,
    };
    let mixed = |sizes| case(Ragged::MIXED, sizes);
    let mut cases: Vec<_> = [1, 16, 20, 96, 100, 128, 256].map(|n| mixed([4, 16, n, 2])).into();
    cases.extend([1, 16, 24, 32, 64, 80, 96, 128].map(|width| mixed([2, width, 16, 1])));
    cases.extend([1, 2, 3, 4, 8].map(|groups| mixed([24, 8, 16, groups])));
    for ragged in [Ragged::FIRST, Ragged::DECODE] {
        cases
            .extend([[64, 64, 128, 8], [48, 32, 128, 1], [3, 20, 100, 3]].map(|s| case(ragged, s)));
    }
    cases.push(case(Ragged::DECODE, [2, 256, 1024, 1]));
    cases.push(case(Ragged::MIXED, [2, 4, 1024, 2]));
    cases.extend([[4, 16, 24, 2], [2, 64, 128, 1]].map(|sizes| case(Ragged::LONG, sizes)));
    let base = mixed([4, 32, 64, 2]);
    // softplus(90) is 90, and its exponential is past the range of f32.
    cases.push(SsmScanCase { dt: Fill::Constant(90.0), ..base });
    cases.push(SsmScanCase { dt: Fill::Constant(-90.0), ..base });
    cases.push(SsmScanCase { dt_limit: [0.5, 0.75], ..base });
    // Decays from 1 - 3e-4 dt, which forget nothing, to exp(-148 dt), which underflow.
    cases.push(SsmScanCase { a_log: Fill::Uniform(-8.0, 5.0), ..base });
    let long = case(Ragged::LONG, [4, 8, 16, 1]);
    cases.push(SsmScanCase { a_log: Fill::Constant(-8.0), ..long });
    cases.push(SsmScanCase { a_log: Fill::Constant(5.0), ..long });
    for &state in states.iter().filter(|dtype| **dtype != DType::F32) {
        let sizes = [[4, 16, 20, 2], [4, 16, 100, 2], [2, 64, 128, 1], [2, 16, 256, 1]];
        for ragged in [Ragged::MIXED, Ragged::DECODE, Ragged::FIRST, Ragged::LONG] {
            cases.extend(sizes.map(|sizes| SsmScanCase { state, ..case(ragged, sizes) }));
        }
        cases.push(SsmScanCase { state, ..case(Ragged::DECODE, [2, 256, 1024, 1]) });
    }
    cases
}

impl Case for SsmScanCase {
    fn name(&self) -> String {
        let [heads, head_dim, n, groups] = self.sizes;
        let mut name = format!(
            "{heads} heads of {head_dim} state {n} groups {groups}, {}",
            self.ragged.name()
        );
        if self.state != DType::F32 {
            name += &format!(" in {}", self.state);
        }
        name += &format!(", dt {:?} in {:?}, A_log {:?}", self.dt, self.dt_limit, self.a_log);
        name
    }

    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<()> {
        let ([heads, head_dim, n, groups], rows) = (self.sizes, self.ragged.rows());
        let inner = heads * head_dim;
        let mut params = rig.stream("a_log").values(self.a_log, heads);
        params.extend(rig.stream("d").values(Fill::NearOne(0.3), heads));
        params.extend(rig.stream("dt_bias").values(Fill::Uniform(-2.0, 0.0), heads));
        // Entries of size n^(-1/4) keep the state's products with `c` near 1 at any size of the state.
        let projected = Fill::Normal((n as f32).powf(-0.25));
        let state = self.ragged.recurrent(&mut rig.stream("state"), projected, inner * n);
        let shape = [self.ragged.slots * inner, n];
        let tolerance = self.tolerance();
        rig.step().run(&SsmScan {
            x: rig.activation("x", rows, inner, Fill::Normal(1.0))?,
            b: rig.activation("b", rows, groups * n, projected)?,
            c: rig.activation("c", rows, groups * n, projected)?,
            dt: rig.activation("dt", rows, heads, self.dt)?,
            head_params: rig.param_of("head_params", 3, heads, &params)?,
            dt_limit: self.dt_limit,
            head_dim,
            state_size: n,
            state: rig.state_of("state", shape, self.state, &state, tolerance)?,
            segments: rig.segments(&self.ragged)?,
            out: rig.output("out", rows, inner, rig.activations(), tolerance)?,
        })
    }
}

impl SsmScanCase {
    /// Products of several rounded decays, summed over steps and state in any order: four times the usual bound. Steps
    /// of 90 make the terms 90 times as large, and decays near 1 add up the terms of 331 rows (18 is its root).
    fn tolerance(&self) -> Tolerance {
        let size = match (self.dt, self.a_log) {
            (Fill::Constant(90.0), _) => 90.0,
            (_, Fill::Constant(-8.0)) => 18.0,
            _ => 1.0,
        };
        Tolerance { relative: 5e-5, ..Tolerance::F32.scaled(4.0 * size) }
    }
}
