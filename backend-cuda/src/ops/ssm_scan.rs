//! The selective scan: picks the form of the kernel that the state size and the segments want.

use super::{common_phases, one, one_dtype};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::switches::on;
use crate::view::{Window, in_pieces, narrow, pointer, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::SsmScan;
use whipsnake_core::tensor::DType;

/// Twin of `Scan` in `kernels/common_scan.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Scan {
    x: Window,
    b: Window,
    c: Window,
    dt: Window,
    out: Window,
    state: Window,
    params: u64,
    table: u64,
    heads: u32,
    head_dim: u32,
    state_size: u32,
    tiles: u32,
    low: f32,
    high: f32,
}

/// One form of the kernel: a row's lanes, a lane's elements of a row and rows, a chunk's tokens.
#[derive(Clone, Copy)]
struct Form {
    lanes: u32,
    elements: u32,
    rows: u32,
    tokens: u32,
}

impl Form {
    const fn new(lanes: u32, elements: u32, rows: u32, tokens: u32) -> Self {
        Self { lanes, elements, rows, tokens }
    }

    /// The smallest form that holds a state of `size`; steps of one token have forms that stage one.
    fn holding(size: u32, longest: usize) -> Self {
        let one_token = longest == 1;
        match size {
            0..=16 => Self::new(1, 16, 2, 4),
            17..=32 => Self::new(2, 16, 2, 4),
            33..=64 => Self::new(4, 16, 2, if one_token { 1 } else { 8 }),
            65..=128 => Self::new(8, 16, 2, if one_token { 1 } else { 8 }),
            129..=256 => Self::new(16, 16, 2, if one_token { 1 } else { 8 }),
            257..=512 => Self::new(32, 16, 1, 4),
            _ => Self::new(32, 32, 1, 4),
        }
    }

    /// Rows of a head that one block holds.
    fn block_rows(self) -> u32 {
        4 * 32 / self.lanes * self.rows
    }

    /// Bytes of the staged tokens, both sides.
    fn shared(self) -> u32 {
        2 * self.tokens * (2 * self.lanes * self.elements + 2 * self.block_rows() + 2) * 4
    }
}

/// Rows of a head that a block of the form for one token holds: 8 * `ROWS` of `kernels/ssm_scan_step.cu`.
const STEP_ROWS: u32 = 32;

/// Pieces of 128 elements of a row of state, where every segment is one token and rows are whole 16-byte pieces.
fn one_token(cuda: &Cuda, op: &SsmScan<Cuda>) -> Option<usize> {
    let fits = op.segments.shape.longest == 1
        && (33..=256).contains(&op.state_size)
        && op.state_size.is_multiple_of(4)
        && in_pieces(&op.state);
    (cuda.tuned() && fits && on("ssm_scan_step")).then(|| op.state_size.div_ceil(128))
}

/// Rows of a head that a block of the chunked form holds, its threads and shared memory: `P`, `THREADS` and `SHARED`
/// of `kernels/ssm_scan_chunk.cu`.
const CHUNK_ROWS: u32 = 32;
const CHUNK_THREADS: u32 = 512;
const CHUNK_SHARED: u32 = 128_544;

/// The same of Hopper's form, which holds as many rows: `STEPS_AT` and its decays in `kernels/common_scan_sm90.cuh`.
const HOPPER_SHARED: u32 = 171_824;

/// Segments from this length on are scanned a chunk at a time.
const CHUNK_FROM: usize = 32;

/// Whether the chunked form takes the operands.
fn chunked(cuda: &Cuda, op: &SsmScan<Cuda>) -> bool {
    let fits = |tensor| in_pieces(tensor) && tensor.dtype() == DType::BF16;
    let sizes =
        op.state_size <= 128 && op.state_size.is_multiple_of(8) && op.head_dim.is_multiple_of(8);
    let long = op.segments.shape.longest >= CHUNK_FROM;
    let operands = [&op.x, &op.b, &op.c, &op.out].into_iter().all(fits) && in_pieces(&op.state);
    cuda.tuned() && long && sizes && operands && on("scan_chunk")
}

/// What every form is told.
fn operands(op: &SsmScan<Cuda>, tiles: u32) -> Scan {
    Scan {
        x: window(&op.x),
        b: window(&op.b),
        c: window(&op.c),
        dt: window(&op.dt),
        out: window(&op.out),
        state: window(&op.state),
        params: pointer(&op.head_params),
        table: pointer(&op.segments.table),
        heads: narrow(op.heads()),
        head_dim: narrow(op.head_dim),
        state_size: narrow(op.state_size),
        tiles,
        low: op.dt_limit[0],
        high: op.dt_limit[1],
    }
}

pub(crate) fn ssm_scan(cuda: &Cuda, op: &SsmScan<Cuda>) -> Result<()> {
    let dtype = one_dtype("ssm_scan", &[&op.x, &op.b, &op.c, &op.dt, &op.out])?;
    let form = Form::holding(narrow(op.state_size), op.segments.shape.longest);
    let chunked = chunked(cuda, op);
    let block_rows = if chunked { CHUNK_ROWS } else { form.block_rows() };
    let tiles = narrow(op.head_dim).div_ceil(block_rows);
    let heads = narrow(op.heads());
    let scan = operands(op, tiles);
    if common_phases::ssm_scan(cuda, op, scan) {
        return Ok(());
    }
    if let Some(pieces) = one_token(cuda, op) {
        let tiles = narrow(op.head_dim).div_ceil(STEP_ROWS);
        let grid = [heads * tiles, narrow(op.segments.shape.segments), 1];
        let shape = Shape { grid, threads: 256, shared: 0 };
        let name = format!("ssm_scan_step_{dtype}_{pieces}");
        return cuda.launch_early("ssm_scan_step", &name, shape, &mut one(Scan { tiles, ..scan }));
    }
    let grid = [heads * tiles, narrow(op.segments.shape.segments), 1];
    if chunked {
        let hopper = cuda.hopper() && on("scan_chunk_sm90");
        let (name, shared) = if hopper {
            ("ssm_scan_chunk_sm90", HOPPER_SHARED)
        } else {
            ("ssm_scan_chunk", CHUNK_SHARED)
        };
        let shape = Shape { grid, threads: CHUNK_THREADS, shared };
        return cuda.launch(name, name, shape, &mut one(scan));
    }
    let Form { lanes, elements, rows, tokens } = form;
    let name = format!("ssm_scan_{dtype}_{lanes}_{elements}_{rows}_{tokens}");
    let file = match (dtype, lanes) {
        ("bf16", ..=8) => "ssm_scan",
        ("bf16", _) => "ssm_scan_wide",
        (_, ..=8) => "ssm_scan_f32",
        _ => "ssm_scan_f32_wide",
    };
    let shape = Shape { grid, threads: 128, shared: form.shared() };
    cuda.launch(file, &name, shape, &mut one(scan))
}
