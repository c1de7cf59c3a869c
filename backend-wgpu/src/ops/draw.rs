//! The next token of each row: a workgroup a row.

use crate::Wgpu;
use crate::call::Call;
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::Draw;

/// Pieces that a range is cut into.
const PIECES: usize = 16;

pub(crate) fn kernel() -> Kernel {
    Kernel::new("draw")
}

pub(crate) fn encode(gpu: &Wgpu, op: &Draw<Wgpu>) -> Result<()> {
    let [rows, cols] = op.x.shape();
    let sorted = usize::from(op.columns.is_some());
    let call = Call::new(kernel()).input(&op.x).input_or(op.columns.as_ref(), &op.x);
    let call = call.output(&op.rows).output(&op.out);
    gpu.dispatch(call.sizes([rows, cols, sorted, levels(cols)]), rows)
}

/// Cuts that leave one of `cols` columns.
fn levels(cols: usize) -> usize {
    let (mut left, mut cuts) = (cols, 0);
    while left > 1 {
        (left, cuts) = (left.div_ceil(PIECES), cuts + 1);
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::levels;

    #[test]
    fn cuts_leave_one_column() {
        let cuts = [1, 2, 16, 17, 256, 257, 65_536, 65_537, 131_072].map(levels);
        assert_eq!(cuts, [0, 1, 1, 2, 2, 3, 4, 5, 5]);
    }
}
