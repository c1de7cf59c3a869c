//! `out[r] = scale * table[tokens[r]]`, a dispatch for each piece of the table.

use super::{format_number, pointwise};
use crate::Wgpu;
use crate::call::{Call, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Embed;
use whipsnake_core::weight::Format;

fn kernel(format: Format) -> Kernel {
    Kernel::new("embed").with("FORMAT", format_number(format))
}

pub(crate) fn kernels() -> Vec<Kernel> {
    Format::ALL.map(kernel).into()
}

pub(crate) fn encode(gpu: &Wgpu, op: &Embed<'_, Wgpu>) -> Result<()> {
    want_f32("embed", &[&op.out])?;
    let [rows, cols] = op.out.shape();
    for piece in gpu.pieces(op.table) {
        let call = Call::new(kernel(op.table.format))
            .whole(piece.data, false)
            .whole(piece.scales, false)
            .input(&op.tokens)
            .output(&op.out)
            .sizes([rows, cols, piece.first, piece.count])
            .floats([op.scale, op.table.scales[0]]);
        gpu.dispatch(call, pointwise(rows, cols))?;
    }
    Ok(())
}
