//! The ops' host side: one file each, which picks a kernel and its grid and hands the operands over.

mod activate;
mod add;
mod argmax;
mod attention;
mod causal_conv1d;
mod common_few;
mod common_few_sm90;
mod common_nvfp4;
mod common_phase;
mod common_phase_products;
mod common_phases;
mod common_vec;
mod copy_slot;
mod draw;
mod embed;
mod gated_norm_matmul;
mod gated_rms_norm;
mod kv_append;
mod matmul;
mod matmul_few;
mod matmul_fp4;
mod matmul_fp8;
mod matmul_many;
mod moe_combine;
mod moe_down;
mod moe_group;
mod moe_matmul;
mod moe_route;
mod moe_up;
mod norm_products;
mod norm_products_nvfp4;
mod rms_norm;
mod rope;
mod scale;
mod select_rows;
mod ssm_scan;
mod top_k;

pub(crate) use activate::activate;
pub(crate) use add::add;
pub(crate) use argmax::argmax;
pub(crate) use attention::attention;
pub(crate) use causal_conv1d::causal_conv1d;
#[cfg(test)]
pub(crate) use common_phase::{AGAIN, Choice, Unit};
pub(crate) use common_phase::{CHOICE, Phase, Products};
pub(crate) use copy_slot::copy_slot;
pub(crate) use draw::draw;
pub(crate) use embed::embed;
pub(crate) use gated_norm_matmul::gated_norm_matmul;
pub(crate) use gated_rms_norm::gated_rms_norm;
pub(crate) use kv_append::kv_append;
pub(crate) use matmul::matmul;
pub(crate) use matmul_many::rounding;
pub(crate) use moe_combine::moe_combine;
pub(crate) use moe_down::moe_down;
pub(crate) use moe_group::moe_group;
pub(crate) use moe_matmul::moe_matmul;
pub(crate) use moe_route::moe_route;
pub(crate) use moe_up::moe_up;
pub(crate) use norm_products::norm_products;
pub(crate) use rms_norm::rms_norm;
pub(crate) use rope::rope;
pub(crate) use scale::scale;
pub(crate) use select_rows::select_rows;
pub(crate) use ssm_scan::ssm_scan;
pub(crate) use top_k::top_k;

use crate::cuda::Cuda;
use crate::driver::Shape;
use crate::kernels::Args;
use crate::view::narrow;
use bytemuck::{Pod, Zeroable};
use whipsnake_core::error::{Error, Result};
use whipsnake_core::ops::{Activation, Store};
use whipsnake_core::tensor::{DType, Tensor};

/// The op methods of the trait: each hands its op to the function of the same name.
macro_rules! encoders {
    ($($name:ident: $op:ty),* $(,)?) => {
        $(fn $name(&self, op: &$op) -> Result<()> {
            $crate::ops::$name(self, op)
        })*
    };
}
pub(crate) use encoders;

/// The same for fused ops: each runs as one where its function takes it, else as its primitive ops.
macro_rules! fused_encoders {
    ($($name:ident: $op:ty),* $(,)?) => {
        $(fn $name(&self, step: &Step<'_, Self>, op: &$op) -> Result<()> {
            if self.tuned()
                && $crate::switches::on(stringify!($name))
                && $crate::ops::$name(self, step, op)?
            {
                return Ok(());
            }
            whipsnake_core::step::FusedOp::unfused(op, step)
        })*
    };
}
pub(crate) use fused_encoders;

/// Threads of a block where nothing else asks for a number.
const THREADS: u32 = 256;

/// From this many rows pointwise ops move four elements at a time; below, launches cost more than bytes.
const MANY_ROWS: usize = 4;

/// Largest grid in the second and third dimension.
const GRID_Y: usize = 65_535;

/// A grid of one dimension.
fn line(blocks: usize, threads: u32) -> Shape {
    Shape { grid: [narrow(blocks), 1, 1], threads, shared: 0 }
}

/// A grid for a kernel that walks on over `count` elements.
fn walk(cuda: &Cuda, count: u64) -> Shape {
    Shape { grid: [cuda.blocks(count, u64::from(THREADS)), 1, 1], threads: THREADS, shared: 0 }
}

/// Whole warps for `width` elements of one row, about four each.
fn warps_for(width: usize) -> u32 {
    narrow(width.div_ceil(4).next_power_of_two().clamp(32, 1024))
}

fn elements(tensor: &Tensor<Cuda>) -> u64 {
    tensor.rows() as u64 * tensor.cols() as u64
}

/// The kernels' number of a function.
fn function(activation: Activation) -> u32 {
    match activation {
        Activation::Identity => 0,
        Activation::Silu => 1,
        Activation::Relu2 => 2,
        Activation::Gelu => 3,
        Activation::Sigmoid => 4,
    }
}

/// Twin of `Store` in `kernels/common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct StoreArg {
    accumulate: u32,
    scale: f32,
}

impl From<Store> for StoreArg {
    fn from(store: Store) -> Self {
        match store {
            Store::Replace => Self { accumulate: 0, scale: 1.0 },
            Store::Accumulate { scale } => Self { accumulate: 1, scale },
        }
    }
}

/// The one dtype of a typed kernel's activations, as it stands in the kernel's name.
fn one_dtype(op: &str, tensors: &[&Tensor<Cuda>]) -> Result<&'static str> {
    let dtype = tensors[0].dtype();
    if let Some(other) = tensors.iter().find(|tensor| tensor.dtype() != dtype) {
        return Err(Error::op(
            op,
            format!("activations are {dtype} and {}, want one dtype", other.dtype()),
        ));
    }
    match dtype {
        DType::F32 => Ok("f32"),
        DType::BF16 => Ok("bf16"),
        _ => Err(Error::op(op, format!("activations are {dtype}, want f32 or bf16 on cuda"))),
    }
}

/// Arguments of one struct.
fn one<T: Pod>(value: T) -> Args {
    let mut args = Args::new();
    args.push(value);
    args
}
