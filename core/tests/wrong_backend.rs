//! The suite catches what it claims to catch: a back end with one deliberate fault at a time fails the right cases.

use std::future::Future;
use whipsnake_core::backend::{Backend, Ledger, Memory, Policy};
use whipsnake_core::batch::Segments;
use whipsnake_core::conformance::run_suite;
use whipsnake_core::cpu::{Cpu, CpuBuffer};
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::*;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{LocalFuture, StoredWeight, Weight};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    ElementLeftUnwritten,
    WriteBehindTheWindow,
    WriteBeforeTheWindow,
    WrongGroup,
    OtherSlotTouched,
    StaleStateRead,
    PaddingRowWritten,
    TiesToTheHighest,
}

/// The CPU's definitions with one fault. Ops that no fault needs refuse.
struct Wrong {
    cpu: Cpu,
    fault: Fault,
}

/// The same window as the other back end sees it.
fn window(tensor: &Tensor<Wrong>) -> Tensor<Cpu> {
    let (row, col) = (tensor.offset() / tensor.stride(), tensor.offset() % tensor.stride());
    let rows = row + tensor.rows();
    Tensor::new(tensor.buffer().clone(), rows, tensor.stride(), tensor.dtype())
        .row_range(row, tensor.rows())
        .columns(col, tensor.cols())
}

fn tables(segments: &Segments<Wrong>) -> Segments<Cpu> {
    Segments {
        table: window(&segments.table),
        places: window(&segments.places),
        shape: segments.shape,
    }
}

impl Wrong {
    /// Overwrites the element `shift` away from the last row's first one.
    fn poke(&self, out: &Tensor<Wrong>, shift: isize, value: f32) -> Result<()> {
        let place = out.offset() + (out.rows() - 1) * out.stride();
        let place = place.checked_add_signed(shift).expect("windows lie inside rings");
        let (row, col) = (place / out.stride(), place % out.stride());
        let whole: Tensor<Cpu> =
            Tensor::new(out.buffer().clone(), row + 1, out.stride(), DType::F32);
        self.cpu.write(&whole.row_range(row, 1).columns(col, 1), &value.to_le_bytes())
    }
}

macro_rules! refuse {
    ($($name:ident: $op:ty),* $(,)?) => {
        $(fn $name(&self, _: &$op) -> Result<()> {
            Err(Error::device("not part of this test"))
        })*
    };
}

impl Backend for Wrong {
    type Buffer = CpuBuffer;

    fn name(&self) -> &'static str {
        "wrong"
    }

    fn policy(&self) -> Policy {
        self.cpu.policy()
    }

    fn allocate(&self, bytes: usize, class: Memory, label: &str) -> Result<CpuBuffer> {
        self.cpu.allocate(bytes, class, label)
    }

    fn same(a: &CpuBuffer, b: &CpuBuffer) -> bool {
        Cpu::same(a, b)
    }

    fn load(&self, _: &StoredWeight) -> impl Future<Output = Result<Weight<Self>>> {
        std::future::ready(Err(Error::device("not part of this test")))
    }

    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()> {
        self.cpu.write(&window(to), bytes)
    }

    fn read(&self, from: &Tensor<Self>) -> impl Future<Output = Result<Vec<u8>>> {
        std::future::ready(pollster::block_on(self.cpu.read(&window(from))))
    }

    fn read_later(&self, from: &Tensor<Self>) -> Result<LocalFuture<'static, Result<Vec<u8>>>> {
        self.cpu.read_later(&window(from))
    }

    fn ledger(&self) -> Ledger {
        self.cpu.ledger()
    }

    fn rms_norm(&self, op: &RmsNorm<Self>) -> Result<()> {
        let groups = if self.fault == Fault::WrongGroup { 1 } else { op.groups };
        let (x, weight, out) = (window(&op.x), window(&op.weight), window(&op.out));
        self.cpu.rms_norm(&RmsNorm { x, weight, groups, eps: op.eps, out })?;
        match self.fault {
            Fault::ElementLeftUnwritten => self.poke(&op.out, 0, f32::NAN),
            // A row ends where its ring begins.
            Fault::WriteBehindTheWindow => {
                self.poke(&op.out, isize::try_from(op.out.cols()).unwrap_or(0), 0.0)
            }
            Fault::WriteBeforeTheWindow => self.poke(&op.out, -1, 0.0),
            _ => Ok(()),
        }
    }

    fn causal_conv1d(&self, op: &CausalConv1d<Self>) -> Result<()> {
        let mut segments = tables(&op.segments);
        if self.fault == Fault::StaleStateRead {
            // Nothing is fresh: every position is past 0.
            segments.table = self.shifted(&segments.table, 3)?;
        }
        self.cpu.causal_conv1d(&CausalConv1d {
            x: window(&op.x),
            weight: window(&op.weight),
            bias: op.bias.as_ref().map(window),
            activation: op.activation,
            state: window(&op.state),
            segments,
            out: window(&op.out),
        })?;
        match self.fault {
            // In every batch of the cases the first slot or the last belongs to no segment.
            Fault::OtherSlotTouched => {
                let first = op.state.row_range(0, 1);
                self.poke(&first, 0, 0.5)?;
                self.poke(&op.state, 0, 0.5)
            }
            // The last row of a padded batch belongs to no segment.
            Fault::PaddingRowWritten => self.poke(&op.out, 0, 0.0),
            _ => Ok(()),
        }
    }

    fn argmax(&self, op: &Argmax<Self>) -> Result<()> {
        self.cpu.argmax(&Argmax { x: window(&op.x), out: window(&op.out) })?;
        if self.fault != Fault::TiesToTheHighest {
            return Ok(());
        }
        let [rows, cols] = op.x.shape();
        let x: Vec<f32> = bytemuck::pod_collect_to_vec(&pollster::block_on(self.read(&op.x))?);
        let last = |row: &[f32]| {
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            u32::try_from(row.iter().rposition(|&v| v == best).unwrap_or(0)).unwrap_or(0)
        };
        let indices: Vec<u32> = x.chunks(cols).map(last).collect();
        assert_eq!(indices.len(), rows);
        self.write(&op.out, bytemuck::cast_slice(&indices))
    }

    refuse! {
        embed: Embed<'_, Self>, gated_rms_norm: GatedRmsNorm<Self>, matmul: Matmul<'_, Self>,
        ssm_scan: SsmScan<Self>, rope: Rope<Self>, kv_append: KvAppend<Self>, attention: Attention<Self>,
        activate: Activate<Self>, moe_route: MoeRoute<Self>, moe_group: MoeGroup<Self>,
        moe_matmul: MoeMatmul<'_, Self>, moe_combine: MoeCombine<Self>, add: Add<Self>, scale: Scale<Self>,
        select_rows: SelectRows<Self>, top_k: TopK<Self>, draw: Draw<Self>, copy_slot: CopySlot<Self>,
    }
}

impl Wrong {
    /// A copy of a u32 table with 1 added to a column.
    fn shifted(&self, table: &Tensor<Cpu>, column: usize) -> Result<Tensor<Cpu>> {
        let bytes = pollster::block_on(self.cpu.read(table))?;
        let mut words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        words.chunks_mut(table.cols()).for_each(|row| row[column] += 1);
        let copy =
            self.cpu.tensor(table.rows(), table.cols(), DType::U32, Memory::Scratch, "copy")?;
        self.cpu.write(&copy, bytemuck::cast_slice(&words))?;
        Ok(copy)
    }
}

/// The faults that the suite finds in one op.
fn faults(op: &str, fault: Fault) -> Vec<String> {
    let wrong = Wrong { cpu: Cpu::reference(), fault };
    let report = pollster::block_on(run_suite(&wrong, op));
    report.faults().map(|o| o.fault.clone().unwrap_or_default()).collect()
}

fn catches(op: &str, fault: Fault, text: &str) {
    let found = faults(op, fault);
    assert!(found.iter().any(|f| f.contains(text)), "{fault:?} of {op}: {found:#?}");
}

#[test]
fn a_right_back_end_passes() {
    for op in ["causal_conv1d", "argmax"] {
        assert_eq!(faults(op, Fault::None), Vec::<String>::new(), "{op}");
    }
}

#[test]
fn an_element_left_unwritten_is_caught() {
    catches("rms_norm", Fault::ElementLeftUnwritten, "is NaN, want ");
}

#[test]
fn a_write_behind_the_window_is_caught() {
    catches("rms_norm", Fault::WriteBehindTheWindow, "lies outside the output and was overwritten");
}

#[test]
fn a_write_before_the_window_is_caught() {
    catches("rms_norm", Fault::WriteBeforeTheWindow, "lies outside the output and was overwritten");
}

#[test]
fn a_norm_over_the_wrong_group_is_caught() {
    catches("rms_norm", Fault::WrongGroup, "out[0, 0] is ");
}

#[test]
fn a_slot_of_no_segment_that_is_touched_is_caught() {
    catches("causal_conv1d", Fault::OtherSlotTouched, "is 0.5, want ");
}

#[test]
fn a_fresh_segment_that_reads_its_slot_is_caught() {
    catches("causal_conv1d", Fault::StaleStateRead, "out[0, 0] is NaN, want ");
}

#[test]
fn a_padding_row_that_is_written_is_caught() {
    catches("causal_conv1d", Fault::PaddingRowWritten, "is 0, want NaN");
}

#[test]
fn ties_to_the_highest_index_are_caught() {
    catches("argmax", Fault::TiesToTheHighest, "out[0, 0] is 999, want 0");
}
