//! What must hold between two runs on one back end, whatever its kernels: sequences never feel how their tokens were
//! batched, split, padded or replayed. State starts as NaN everywhere.

use super::machine::{Machine, Mixer, Part};
use super::rig::Rig;
use crate::backend::{Backend, StepKey};
use crate::batch::BatchShape;
use crate::error::Result;
use crate::ops::{MoeRoute, RouteRule, Score};
use crate::tensor::DType;
use std::sync::atomic::{AtomicU64, Ordering};

/// A statement about a back end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Law {
    /// Chunks of these lengths, the last repeated, give what the whole sequence gives.
    SplitIsWhole(Mixer, &'static [usize]),
    /// Sequences that share their steps give what each gives alone.
    InterleavedIsAlone(Mixer),
    /// Equal segments of one batch give equal bits.
    EqualSegmentsAgree(Mixer),
    /// A fresh segment in a slot that held another sequence gives what an unused slot gives, bit for bit.
    DirtySlotIsNew(Mixer),
    /// Rows and table entries of padding change no bit of the others.
    PaddingChangesNothing(Mixer),
    /// A step that is replayed with new inputs gives the bits that encoding it gives.
    ReplayIsEager(Mixer),
    /// A row of NaN, as padding may hold, chooses experts that exist and changes no bit of other rows' choices.
    RouterStaysInRange,
}

/// Every law of every stateful mixer.
pub(super) fn laws() -> Vec<Law> {
    let mut laws = vec![Law::RouterStaysInRange];
    for mixer in Mixer::ALL {
        let splits: [&[usize]; 6] =
            [&[1], &[2], &[1, 82], &[3, 1, 16], &[64, 1, 1, 2, 31], &[80, 3]];
        laws.extend(splits.map(|lengths| Law::SplitIsWhole(mixer, lengths)));
        laws.extend([
            Law::InterleavedIsAlone(mixer),
            Law::EqualSegmentsAgree(mixer),
            Law::DirtySlotIsNew(mixer),
            Law::PaddingChangesNothing(mixer),
            Law::ReplayIsEager(mixer),
        ]);
    }
    laws
}

/// Tokens of a whole sequence: more than most tiles, and a multiple of none.
const TOKENS: usize = 83;

impl Law {
    pub(super) fn name(self) -> String {
        format!("{self:?}")
    }

    /// What breaks the law, if anything.
    pub(super) async fn fault<B: Backend>(
        self,
        backend: &B,
        dtype: DType,
    ) -> Result<Option<String>> {
        let new = |mixer| Machine::new(backend, mixer, dtype);
        match self {
            Self::SplitIsWhole(mixer, lengths) => {
                split([new(mixer)?, new(mixer)?], lengths, dtype).await
            }
            Self::InterleavedIsAlone(mixer) => interleaved([new(mixer)?, new(mixer)?], dtype).await,
            Self::EqualSegmentsAgree(mixer) => equal(new(mixer)?).await,
            Self::DirtySlotIsNew(mixer) => dirty([new(mixer)?, new(mixer)?]).await,
            Self::PaddingChangesNothing(mixer) => padding([new(mixer)?, new(mixer)?]).await,
            Self::ReplayIsEager(mixer) => replay([new(mixer)?, new(mixer)?]).await,
            Self::RouterStaysInRange => router(backend).await,
        }
    }
}

type Rows = [Vec<f32>];

async fn split<B: Backend>(
    [whole, chunks]: [Machine<'_, B>; 2],
    lengths: &[usize],
    dtype: DType,
) -> Result<Option<String>> {
    let part = |from, len| [Part { sequence: 7, from, len, slot: 1 }];
    let want = whole.run(&part(0, TOKENS), 0).await?;
    let mut got = Vec::new();
    let last = lengths.last().copied().unwrap_or(TOKENS);
    let mut lengths = lengths.iter().copied().chain(std::iter::repeat(last));
    while got.len() < TOKENS {
        let len = lengths.next().unwrap_or(last).min(TOKENS - got.len());
        got.extend(chunks.run(&part(got.len(), len), 0).await?);
    }
    Ok(far(&got, &want, dtype))
}

async fn interleaved<B: Backend>(
    [together, alone]: [Machine<'_, B>; 2],
    dtype: DType,
) -> Result<Option<String>> {
    // Rows of each sequence in five steps: none, one, fewer than a window, many.
    const LENGTHS: [[usize; 3]; 5] = [[4, 0, 1], [1, 17, 1], [1, 1, 2], [0, 1, 33], [9, 1, 1]];
    let mut got = [vec![], vec![], vec![]];
    for lengths in LENGTHS {
        let part = |(sequence, slot): (usize, usize)| Part {
            sequence,
            from: got[sequence].len(),
            len: lengths[sequence],
            slot,
        };
        let parts: Vec<_> =
            [(0, 5), (1, 0), (2, 3)].into_iter().map(part).filter(|p| p.len > 0).collect();
        let mut rows = together.run(&parts, 0).await?.into_iter();
        for part in parts {
            got[part.sequence].extend(rows.by_ref().take(part.len));
        }
    }
    for (sequence, got) in got.iter().enumerate() {
        let part = Part { sequence, from: 0, len: got.len(), slot: 2 };
        let fault = far(got, &alone.run(&[part], 0).await?, dtype);
        if fault.is_some() {
            return Ok(fault.map(|f| format!("sequence {sequence}: {f}")));
        }
    }
    Ok(None)
}

async fn equal<B: Backend>(machine: Machine<'_, B>) -> Result<Option<String>> {
    for (from, len) in [(0, 5), (5, 1), (6, 19)] {
        let parts = [3, 0, 4, 1].map(|slot| Part { sequence: 9, from, len, slot });
        let rows = machine.run(&parts, 0).await?;
        for other in rows.chunks(len).skip(1) {
            if let Some(fault) = differ(other, &rows[..len]) {
                return Ok(Some(fault));
            }
        }
    }
    Ok(None)
}

async fn dirty<B: Backend>([used, new]: [Machine<'_, B>; 2]) -> Result<Option<String>> {
    used.run(&[Part { sequence: 1, from: 0, len: 40, slot: 2 }], 0).await?;
    for (from, len) in [(0, 1), (1, 6), (7, 1)] {
        let part = [Part { sequence: 2, from, len, slot: 2 }];
        if let Some(fault) = differ(&used.run(&part, 0).await?, &new.run(&part, 0).await?) {
            return Ok(Some(fault));
        }
    }
    Ok(None)
}

async fn padding<B: Backend>([padded, plain]: [Machine<'_, B>; 2]) -> Result<Option<String>> {
    for (from, len) in [(0, 6), (6, 1), (7, 20)] {
        let part = |sequence, slot| Part { sequence, from, len, slot };
        let parts = [part(1, 4), part(2, 1)];
        if let Some(fault) = differ(&padded.run(&parts, 7).await?, &plain.run(&parts, 0).await?) {
            return Ok(Some(fault));
        }
    }
    Ok(None)
}

/// A key stands for one list of operands, so no two runs may share one.
pub(super) fn new_key() -> StepKey {
    static KEYS: AtomicU64 = AtomicU64::new(1 << 48);
    StepKey(KEYS.fetch_add(1, Ordering::Relaxed))
}

async fn replay<B: Backend>([keyed, eager]: [Machine<'_, B>; 2]) -> Result<Option<String>> {
    let key = new_key();
    let bounds = BatchShape { rows: 10, segments: 3, longest: 10, context: 96 };
    let mut done = [0, 0];
    for [first, second] in [[5, 3], [3, 5], [4, 4], [7, 2]] {
        let part = |s: usize, len| Part { sequence: 5 + s, from: done[s], len, slot: 3 - s };
        let parts = [part(0, first), part(1, second)];
        let got = keyed.run_keyed(key, &parts, bounds).await?;
        // The other machine's keys are all new: encoded, never replayed.
        let want = eager.run_keyed(new_key(), &parts, bounds).await?;
        if let Some(fault) = differ(&got, &want) {
            return Ok(Some(format!("lengths {first} and {second}: {fault}")));
        }
        done = [done[0] + first, done[1] + second];
    }
    Ok(None)
}

async fn router<B: Backend>(backend: &B) -> Result<Option<String>> {
    const EXPERTS: usize = 48;
    let mut want = vec![];
    for broken in [false, true] {
        let rig = Rig::new(backend, "router", DType::F32);
        let mut logits = rig.stream("logits").values(super::Fill::Normal(1.0), 3 * EXPERTS);
        if broken {
            logits[EXPERTS..2 * EXPERTS].fill(f32::NAN);
        }
        let rule = RouteRule {
            score: Score::Sigmoid,
            top_k: 6,
            groups: 1,
            top_groups: 1,
            normalise: Some(1e-20),
            scale: 1.0,
        };
        let ids = rig.output_u32("ids", 3, rule.top_k)?;
        rig.step().run(&MoeRoute {
            logits: rig.input_of("logits", [3, EXPERTS], DType::F32, &logits)?,
            bias: None,
            rule,
            ids: ids.clone(),
            weights: rig.output("weights", 3, rule.top_k, DType::F32, super::Tolerance::F32)?,
        })?;
        let ids: Vec<u32> = bytemuck::pod_collect_to_vec(&backend.read(&ids).await?);
        if let Some(id) = ids.iter().find(|&&id| id >= EXPERTS as u32) {
            return Ok(Some(format!("a row of NaN chooses expert {id} of {EXPERTS}")));
        }
        let others = [&ids[..rule.top_k], &ids[2 * rule.top_k..]].concat();
        if broken && others != want {
            return Ok(Some(format!(
                "beside a row of NaN others choose {others:?}, want {want:?}"
            )));
        }
        want = others;
    }
    Ok(None)
}

/// The first element that is not the same bits.
fn differ(got: &Rows, want: &Rows) -> Option<String> {
    first(got, want, |got, want| got.to_bits() == want.to_bits() && !want.is_nan())
}

/// The first element that is too far off: sums in another order, and one step of a narrow dtype where a sum is rounded.
fn far(got: &Rows, want: &Rows, dtype: DType) -> Option<String> {
    let step = match dtype {
        DType::BF16 => 2f32.powi(-7),
        DType::F16 => 2f32.powi(-10),
        _ => 0.0,
    };
    first(got, want, |got, want| (got - want).abs() <= 1e-4 + (1e-4 + step) * want.abs())
}

fn first(got: &Rows, want: &Rows, close: impl Fn(f32, f32) -> bool) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} rows, want {}", got.len(), want.len()));
    }
    for (row, (got, want)) in got.iter().zip(want).enumerate() {
        for (col, (got, want)) in got.iter().zip(want).enumerate() {
            if !close(*got, *want) {
                return Some(format!("row {row} column {col} is {got}, want {want}"));
            }
        }
    }
    None
}
