//! Products of many rows with block-scaled FP4, for those who ask for them with `WHIPSNAKE_CUDA_ON=fp4`: x is rounded to NVFP4
//! as the weight is. On sm_120a a kernel of this program multiplies, elsewhere cuBLASLt, which refuses devices without such
//! products. Neither has run on a device that has them yet; what rounds x and places scales is held to the CPU below.

use super::matmul_many::{factors, library};
use super::{StoreArg, THREADS, line, one};
use crate::cublaslt::{Factors, Product, Types};
use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::switches::wanted;
use crate::view::{Bank, Window, bank, narrow, optional, window};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::Result;
use whipsnake_core::ops::Matmul;
use whipsnake_core::tensor::Tensor;
use whipsnake_core::weight::{Format, NVFP4_GROUP, Weight};

/// From this many rows tiles are full.
const ROWS: usize = 64;

/// Outputs of a block of the kernel for sm_120a.
const OUTPUTS: usize = 128;

/// Rows of a tile of block scales in cuBLASLt's order: `TILE` of `kernels/matmul_fp4.cu`.
const TILE_ROWS: usize = 128;

/// Twin of `Linear` in `kernels/matmul_fp4_sm120.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Linear {
    codes: u64,
    blocks: u64,
    units: u64,
    weight: Bank,
    bias: u64,
    store: StoreArg,
    out: Window,
    rows: u32,
    unused: u32,
}

/// Where the operands of a product through cuBLASLt lie, its block scales in tiles.
struct Operands {
    codes: u64,
    blocks: u64,
    /// Codes and block scales of the weight.
    weight_codes: u64,
    weight_blocks: u64,
    /// `alpha` and `beta`.
    factors: u64,
}

/// Relative L2 of the product that rounding x costs at most: 9.5e-2 over normal deviates, by `to_nvfp4` of the core, and a
/// tenth more that is left to chance.
pub(super) const ROUNDING: f32 = 1.1 * 9.5e-2;

/// Whether the product may run in FP4: it is asked for, and the weight allows it. x is bf16 in 16-byte pieces.
pub(super) fn takes(op: &Matmul<'_, Cuda>) -> bool {
    let stages = op.weight.format == Format::Nvfp4 && op.weight.cols.is_multiple_of(64);
    wanted("fp4") && stages && op.out.rows() >= ROWS
}

/// Queues the product on the kernel of sm_120a.
pub(super) fn by_warps(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<()> {
    let ([rows, outputs], cols) = (op.out.shape(), op.weight.cols);
    let sizes = [rows * cols / 2, rows * cols / NVFP4_GROUP, rows * 4];
    let [codes, blocks, units] = cuda.workspaces(sizes)?;
    find_units(cuda, &op.x, units)?;
    round(cuda, &op.x, "matmul_fp4_rows_line", rows, [units, codes, blocks])?;
    let linear = Linear {
        codes,
        blocks,
        units,
        weight: bank(op.weight),
        bias: optional(op.bias.as_ref()),
        store: StoreArg::from(op.store),
        out: window(&op.out),
        rows: narrow(rows),
        unused: 0,
    };
    let grid = [narrow(outputs.div_ceil(OUTPUTS)), narrow(rows.div_ceil(ROWS)), 1];
    let shape = Shape { grid, threads: 128, shared: 0 };
    cuda.launch("matmul_fp4_sm120", "matmul_fp4", shape, &mut one(linear))
}

/// Queues the product through cuBLASLt, where that takes it.
pub(super) fn through_library(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> Result<bool> {
    let Some((library, shape)) = library(cuda, op, Types::Fp4) else { return Ok(false) };
    let operands = operands(cuda, &op.x, op.weight, factors(op, op.weight.scales[0]))?;
    let product = Product {
        weight: operands.weight_codes,
        x: operands.codes,
        out: window(&op.out).data,
        factors: Factors::Device(operands.factors),
        scales: Some([operands.weight_blocks, operands.blocks]),
    };
    library.run(cuda, shape, product).map(|()| true)
}

/// Queues what prepares them.
fn operands(
    cuda: &Cuda,
    x: &Tensor<Cuda>,
    weight: &Weight<Cuda>,
    [alpha, beta]: [f32; 2],
) -> Result<Operands> {
    let ([rows, cols], outputs) = (x.shape(), weight.rows);
    let groups = cols / NVFP4_GROUP;
    let [rows_in_tiles, outputs_in_tiles] = [rows, outputs].map(|n| n.next_multiple_of(TILE_ROWS));
    let [x_codes, all_codes] = [rows, outputs].map(|n| n * cols / 2);
    let [x_blocks, all_blocks] = [rows_in_tiles, outputs_in_tiles].map(|n| n * groups);
    let sizes = [x_codes, x_blocks, all_codes, all_blocks, rows * 4, 8];
    let [codes, blocks, weight_codes, weight_blocks, units, factors] = cuda.workspaces(sizes)?;
    find_units(cuda, x, units)?;
    let mut args = Args::new();
    args.push(units).push(narrow(rows)).push(alpha).push(beta).push(factors);
    cuda.launch("matmul_fp4", "matmul_fp4_one_unit", line(1, 1024), &mut args)?;
    round(cuda, x, "matmul_fp4_rows_tile", rows_in_tiles, [units, codes, blocks])?;
    let mut args = Args::new();
    args.push(bank(weight)).push(weight_codes).push(weight_blocks);
    let fours = narrow(outputs_in_tiles * groups / 4);
    let shape = line(fours.div_ceil(THREADS) as usize, THREADS);
    cuda.launch("matmul_fp4", "matmul_fp4_weight", shape, &mut args)?;
    Ok(Operands { codes, blocks, weight_codes, weight_blocks, factors })
}

/// Queues the kernel that finds the unit of each row of x.
fn find_units(cuda: &Cuda, x: &Tensor<Cuda>, units: u64) -> Result<()> {
    let mut args = Args::new();
    args.push(window(x)).push(units);
    cuda.launch("matmul_fp4", "matmul_fp4_units", line(x.rows(), THREADS), &mut args)
}

/// Queues one of the kernels that round x, which writes `padded` rows of block scales; `at` is where units, codes and blocks
/// lie.
fn round(cuda: &Cuda, x: &Tensor<Cuda>, kernel: &str, padded: usize, at: [u64; 3]) -> Result<()> {
    let mut args = Args::new();
    args.push(window(x)).push(narrow(x.rows()));
    at.into_iter().for_each(|pointer| {
        args.push(pointer);
    });
    cuda.launch("matmul_fp4", kernel, line(padded, THREADS), &mut args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Options;
    use crate::driver::Block;
    use crate::ops::matmul_fp8::tests::distance;
    use crate::probe::devices;
    use whipsnake_core::backend::{Backend, Memory};
    use whipsnake_core::conformance::{Fill, Stream};
    use whipsnake_core::quant::{e2m1_to_f32, e4m3_to_f32, f32_to_e2m1, f32_to_e4m3, to_nvfp4};
    use whipsnake_core::tensor::DType;
    use whipsnake_core::weight::{Plane, StoredPart, StoredWeight};

    /// Twin of `tile_place` in `kernels/matmul_fp4.cu`.
    fn tile_place(row: usize, block: usize, blocks: usize) -> usize {
        let tile = row / TILE_ROWS * blocks.div_ceil(4) + block / 4;
        tile * 4 * TILE_ROWS + row % 32 * 16 + row % TILE_ROWS / 32 * 4 + block % 4
    }

    #[test]
    fn tiles_of_scales_lie_as_the_library_walks_through_them() {
        let (rows, blocks) = (3 * TILE_ROWS, 20);
        let mut place = 0;
        for first_row in (0..rows).step_by(TILE_ROWS) {
            for first_block in (0..blocks).step_by(4) {
                for lane in 0..32 {
                    for quarter in 0..4 {
                        for block in 0..4 {
                            let row = first_row + 32 * quarter + lane;
                            assert_eq!(tile_place(row, first_block + block, blocks), place);
                            place += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(place, rows * blocks);
    }

    #[test]
    fn rounding_normal_deviates_costs_what_the_bound_says() {
        let x = Stream::new("matmul_fp4", "rounding").values(Fill::Normal(1.0), 1 << 18);
        // What the device does, with the unit a power of two above the largest value's.
        let unit = 2f32.powi(-9);
        let cost = distance(x.chunks(NVFP4_GROUP).flat_map(|block| {
            let (scale, codes) = rounded(block, unit);
            let back = move |code| e2m1_to_f32(code) * e4m3_to_f32(scale) * unit;
            codes.into_iter().map(back).zip(block.iter().copied())
        }));
        assert!(cost < ROUNDING / 1.09 && cost > ROUNDING / 1.12, "{cost}");
    }

    fn download(cuda: &Cuda, pointer: u64, bytes: usize) -> Vec<u8> {
        let block = Block { pointer, pitch: bytes, width: bytes, rows: 1 };
        cuda.staging().download(block).expect("a read")
    }

    const ROWS: usize = 130;
    const COLS: usize = 192;
    const OUTPUTS: usize = 72;
    const GROUPS: usize = COLS / NVFP4_GROUP;

    /// A row of ordinary values, but for one of large ones, one of zeros and one that holds NaN.
    fn input() -> Vec<f32> {
        let mut x = Stream::new("matmul_fp4", "x").values(Fill::Normal(1.0), ROWS * COLS);
        x[3 * COLS..4 * COLS].iter_mut().for_each(|v| *v *= 100.0);
        x[5 * COLS..6 * COLS].fill(0.0);
        x[7 * COLS + 20] = f32::NAN;
        x.iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect()
    }

    /// Rounds a block on the host: its scale's byte and its codes.
    fn rounded(block: &[f32], unit: f32) -> (u8, Vec<u8>) {
        let larger =
            |m: f32, v: &f32| if m.is_nan() || v.is_nan() { f32::NAN } else { m.max(v.abs()) };
        let most = block.iter().fold(0f32, larger);
        let scale = f32_to_e4m3(most / (6.0 * unit));
        let step = e4m3_to_f32(scale) * unit;
        let factor = if step > 0.0 { 1.0 / step } else { 0.0 };
        (scale, block.iter().map(|v| f32_to_e2m1(v * factor)).collect())
    }

    #[test]
    fn what_the_library_is_given_is_x_and_the_weight() {
        if let Some(reason) = &devices()[0].refused {
            return println!("skipped: {reason}");
        }
        let cuda = Cuda::with_options(0, Options::default()).expect("a device");
        let wide = cuda.tensor(ROWS, COLS + 64, DType::BF16, Memory::Scratch, "x").expect("room");
        let (x, values) = (wide.columns(32, COLS), input());
        let bytes: Vec<u8> =
            values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        cuda.write(&x, &bytes).expect("a write");
        let values_of_weight =
            Stream::new("matmul_fp4", "w").values(Fill::Normal(0.1), OUTPUTS * COLS);
        let packed = to_nvfp4(&values_of_weight);
        let part = StoredPart {
            name: "w".into(),
            data: Plane::from_bytes(packed.codes),
            scales: Some(Plane::from_bytes(packed.scales.clone())),
            scale: packed.scale,
        };
        let (rows, cols, format) = (OUTPUTS, COLS, Format::Nvfp4);
        let stored = StoredWeight { name: "w".into(), rows, cols, format, parts: vec![part] };
        let weight = pollster::block_on(cuda.load(&stored)).expect("a weight");
        let made = operands(&cuda, &x, &weight, [0.5, 1.0]).expect("operands");

        let factors: Vec<f32> = bytemuck::pod_collect_to_vec(&download(&cuda, made.factors, 8));
        let unit = factors[0] / 0.5;
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let least = largest / (6.0 * 448.0);
        assert!(unit >= least && unit < 2.0 * least && unit.to_bits() << 9 == 0, "{unit}");
        assert_eq!(factors[1], 1.0);

        let codes = download(&cuda, made.codes, ROWS * COLS / 2);
        let scales = download(&cuda, made.blocks, 2 * TILE_ROWS * GROUPS);
        check_x(&values, unit, &codes, &scales);
        let scales = download(&cuda, made.weight_blocks, TILE_ROWS * GROUPS);
        for row in 0..TILE_ROWS {
            for group in 0..GROUPS {
                let want = packed.scales.get(row * GROUPS + group).copied().unwrap_or(0);
                assert_eq!(scales[tile_place(row, group, GROUPS)], want, "[{row}, {group}]");
            }
        }
    }

    fn check_x(values: &[f32], unit: f32, codes: &[u8], scales: &[u8]) {
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(codes);
        for (index, block) in values.chunks(NVFP4_GROUP).enumerate() {
            let (row, group) = (index / GROUPS, index % GROUPS);
            let (scale, codes) = rounded(block, unit);
            assert_eq!(scales[tile_place(row, group, GROUPS)], scale, "scale of [{row}, {group}]");
            for (i, want) in codes.into_iter().enumerate() {
                let col = group * NVFP4_GROUP + i;
                let word = words[(row * COLS + col) / 8];
                // Columns 0 2 4 6 of a word lie in its low half, 1 3 5 7 in its high half.
                let code = (word >> (col % 8 / 2 * 4 + col % 2 * 16) & 15) as u8;
                assert_eq!(code, want, "code of [{row}, {col}]");
            }
        }
        let padding = (ROWS..2 * TILE_ROWS).flat_map(|row| (0..GROUPS).map(move |g| (row, g)));
        for (row, group) in padding {
            assert_eq!(scales[tile_place(row, group, GROUPS)], 0, "[{row}, {group}] is no row");
        }
    }
}
