//! Products of one row as phases of a program: how their tiles and a block's memory are dealt.

use super::common_phase::{AGAIN, BANK_BF16, BANK_F32, BANK_NVFP4, Phase, Products, UNITS, Unit};
use crate::cuda::Cuda;
use crate::program::AREA;
use crate::view::{bank, dtype_number, narrow};
use crate::weight::STRIPE;
use bytemuck::Zeroable;
use whipsnake_core::tensor::DType;
use whipsnake_core::weight::{Format, Weight};

/// Tiles and steps that `over` of the kernel divides.
const MOST_STEPS: u32 = 1 << 20;

/// Warps and threads of a block.
const WARPS: u32 = 16;
const THREADS: u32 = 32 * WARPS;

/// Dtypes of a window that products go to.
const F32: u32 = dtype_number(DType::F32);
const BF16: u32 = dtype_number(DType::BF16);

/// Outputs of a tile.
const OUTPUTS: u32 = 8;

/// Columns of a step of a format that streams, by its number in a bank, and bytes of them staged.
fn step(format: u32) -> Option<[u32; 2]> {
    match format {
        BANK_NVFP4 => Some([256, 512 + 128]),
        BANK_BF16 => Some([64, 128]),
        _ => None,
    }
}

/// A unit of a weight's matrices.
pub(super) fn unit(weight: &Weight<Cuda>) -> Unit {
    Unit { weight: bank(weight), ..Unit::zeroed() }
}

/// Whether the phases take the weight; F32 ones only beside a norm.
pub(super) fn takes(weight: &Weight<Cuda>) -> bool {
    match weight.format {
        Format::Nvfp4 => weight.cols.is_multiple_of(64) && weight.rows.is_multiple_of(STRIPE),
        Format::BF16 | Format::F32 => weight.cols.is_multiple_of(8),
        Format::F16 | Format::Fp8 => false,
    }
}

/// Products with the F32 one of their units for itself, which then is known while the others' still run; and those others,
/// which meet what the first have staged.
pub(super) fn apart(products: Products) -> [Products; 2] {
    let mut first = Products { share: 0, extra: 0, ..products };
    first.unit.iter_mut().for_each(|unit| (unit.tiles, unit.end) = (0, 0));
    [first, Products { staged: AGAIN, plain: narrow(UNITS), keep: 0, ..products }]
}

/// Products to be dealt: `again` is the phase that staged their rows, where it is not they that do, and `free` is where a
/// block's memory begins that they may use.
pub(super) struct Dealing<'a> {
    pub products: Products,
    pub units: &'a [Unit],
    /// Matrices that every unit runs.
    pub copies: usize,
    pub again: Option<&'a Products>,
    pub free: u32,
}

impl Dealing<'_> {
    /// The phase's products in full. None where they are of different formats or too large.
    pub fn deal(self, cuda: &Cuda) -> Option<Products> {
        let Self { mut products, units, copies, again, free } = self;
        let (copies, blocks) = (narrow(copies), narrow(cuda.multiprocessors()));
        let streams = |unit: &&Unit| unit.weight.format != BANK_F32;
        let first = units.iter().find(streams)?.weight;
        let [columns, _] = step(first.format)?;
        let plain = units.iter().position(|unit| !streams(&unit));
        let others = units.len() - usize::from(plain.is_some());
        let chained = products.chained != 0;
        let same = |unit: &Unit| {
            unit.weight.format == first.format
                && if chained {
                    unit.weight.rows == first.rows
                } else {
                    unit.weight.cols == first.cols
                }
        };
        let staged = again.is_none_or(|again| again.format == first.format);
        if units.iter().filter(|unit| same(unit)).count() != others
            || units.len() > UNITS
            || !staged
        {
            return None;
        }
        let elements = |unit: &Unit| u64::from(unit.weight.rows) * u64::from(unit.weight.cols);
        let bytes: u64 = units.iter().filter(streams).map(elements).sum::<u64>() * 2;
        if first.format == BANK_BF16 && !cuda.program.borrow().gains(bytes * u64::from(copies)) {
            return None;
        }
        let mut end = 0;
        for (index, (to, from)) in products.unit.iter_mut().zip(units).enumerate() {
            // A chain's matrices share the tiles of the first.
            let tiles = if !streams(&from) || (chained && index > 0) {
                0
            } else {
                from.weight.rows.div_ceil(OUTPUTS)
            };
            end += tiles * if chained { 1 } else { copies };
            *to = Unit { tiles, end, ..*from };
        }
        products.format = first.format;
        products.plain = narrow(plain.unwrap_or(UNITS));
        (products.share, products.extra) = (end / blocks, end % blocks);
        products.steps = first.cols.div_ceil(columns);
        products.length = products.steps;
        if chained {
            let rest = units[1..].iter().map(|unit| unit.weight.cols.div_ceil(columns));
            products.chained = copies;
            products.length = products.steps * copies + rest.sum::<u32>();
        }
        let most = end.div_ceil(blocks);
        let typed = |unit: &Unit| matches!(unit.out.dtype, F32 | BF16);
        // One thread has the F32 unit's output and no other.
        if !units.iter().all(typed) || (plain.is_some() && most * OUTPUTS >= THREADS) {
            return None;
        }
        place(&mut products, again, free, most)?;
        (most * products.length < MOST_STEPS && end < MOST_STEPS).then_some(products)
    }
}

/// Deals a block's memory; `most` is its tiles.
fn place(products: &mut Products, again: Option<&Products>, free: u32, most: u32) -> Option<()> {
    products.x_place = again.map_or(free, |again| again.x_place);
    products.sums_place = free + if again.is_some() { 0 } else { staged_bytes(products) };
    let runs = (most * products.length).div_ceil(WARPS) / products.length + 2;
    products.extra_place = products.sums_place + WARPS * runs * OUTPUTS * 4;
    let taps = if products.conv.channels > 0 { 2 * products.conv.width } else { 0 };
    (products.extra_place + most * OUTPUTS * taps * 4 <= AREA).then_some(())
}

/// Bytes of the staged rows.
pub(super) fn staged_bytes(products: &Products) -> u32 {
    products.length * step(products.format).map_or(0, |[_, bytes]| bytes)
}

/// Adds products to the step's program.
pub(super) fn push(cuda: &Cuda, meet: bool, products: Products) {
    cuda.program.borrow_mut().push(Phase::products(meet, products));
}
