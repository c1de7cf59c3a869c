//! Every op refuses operands that do not fit, naming the operand, what was found and what was wanted.

mod dense;
mod experts;
mod sequence;

use whipsnake_core::backend::{Backend, Memory};
use whipsnake_core::batch::{BatchShape, Segments};
use whipsnake_core::cpu::Cpu;
use whipsnake_core::error::Kind;
use whipsnake_core::ops::*;
use whipsnake_core::step::{FusedOp, Op, Step};
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Weight};

fn refused<O: Op<Cpu>>(op: O, text: &str) {
    let error = Step::new(&Cpu::new()).run(&op).expect_err(text);
    assert_eq!((error.to_string().as_str(), error.kind()), (text, Kind::Op));
}

fn refused_fused<O: FusedOp<Cpu>>(op: O, text: &str) {
    let error = Step::new(&Cpu::new()).fused(&op).expect_err(text);
    assert_eq!((error.to_string().as_str(), error.kind()), (text, Kind::Op));
}

fn of(dtype: DType, rows: usize, cols: usize) -> Tensor<Cpu> {
    Cpu::new().tensor(rows, cols, dtype, Memory::Scratch, "test").expect("host memory")
}

/// f32. `[rows, cols]`
fn t(rows: usize, cols: usize) -> Tensor<Cpu> {
    of(DType::F32, rows, cols)
}

/// u32. `[rows, cols]`
fn u(rows: usize, cols: usize) -> Tensor<Cpu> {
    of(DType::U32, rows, cols)
}

fn bank(experts: usize, rows: usize, cols: usize) -> Weight<Cpu> {
    let (planes, scales) = (vec![], vec![1.0; experts]);
    Weight { name: "w".into(), rows, cols, experts, format: Format::BF16, planes, scales }
}

/// The tables of a batch of `rows` rows in two segments.
fn tables(rows: usize) -> Segments<Cpu> {
    let shape = BatchShape { rows, segments: 2, longest: rows, context: 8 };
    Segments { table: u(2, 4), places: u(rows, 4), shape }
}
