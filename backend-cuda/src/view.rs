//! What kernels are told about operands: the twins of the structs in `kernels/common.cuh`.

use crate::cuda::Cuda;
use bytemuck::{Pod, Zeroable};
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{Format, Weight};

/// A window of a tensor.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Window {
    pub data: u64,
    /// Elements from one row to the next.
    pub stride: u64,
    pub dtype: u32,
    pub cols: u32,
}

/// A weight's planes.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Bank {
    /// Elements of every matrix.
    pub data: u64,
    /// Block scales of every matrix; 0 where the format has none.
    pub scales: u64,
    /// f32 scale of each matrix.
    pub scale: u64,
    pub rows: u32,
    pub cols: u32,
    pub format: u32,
    pub experts: u32,
}

/// A size for a kernel; windows of a device have fewer than 2^32 rows and columns.
pub(crate) fn narrow(size: usize) -> u32 {
    u32::try_from(size).expect("sizes of one dimension fit 32 bits")
}

pub(crate) fn pointer(tensor: &Tensor<Cuda>) -> u64 {
    tensor.buffer().pointer() + tensor.offset_bytes() as u64
}

/// The address of an optional dense operand, 0 where it is not there.
pub(crate) fn optional(tensor: Option<&Tensor<Cuda>>) -> u64 {
    tensor.map_or(0, pointer)
}

/// `DType` of `kernels/common.cuh`.
pub(crate) const fn dtype_number(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::U32 => 3,
        DType::F8E4M3 => 4,
    }
}

/// `Format` of `kernels/common.cuh`.
pub(crate) const fn format_number(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::BF16 => 2,
        Format::Nvfp4 => 3,
        Format::Fp8 => 4,
    }
}

pub(crate) fn window(tensor: &Tensor<Cuda>) -> Window {
    Window {
        data: pointer(tensor),
        stride: tensor.stride() as u64,
        dtype: dtype_number(tensor.dtype()),
        cols: narrow(tensor.cols()),
    }
}

pub(crate) fn bank(weight: &Weight<Cuda>) -> Bank {
    let [data, scale] = [0, 1].map(|plane: usize| weight.planes[plane].pointer());
    Bank {
        data,
        scales: weight.planes.get(2).map_or(0, crate::CudaBuffer::pointer),
        scale,
        rows: narrow(weight.rows),
        cols: narrow(weight.cols),
        format: format_number(weight.format),
        experts: narrow(weight.experts),
    }
}

/// Whether 16-byte pieces of every row of the window lie on 16-byte boundaries.
pub(crate) fn in_pieces(tensor: &Tensor<Cuda>) -> bool {
    let bytes = tensor.dtype().bytes();
    pointer(tensor).is_multiple_of(16)
        && (tensor.rows() <= 1 || (tensor.stride() * bytes).is_multiple_of(16))
}

/// Whether the kernels that move four elements at a time take the window.
pub(crate) fn in_fours(tensor: &Tensor<Cuda>) -> bool {
    let typed = matches!(tensor.dtype(), DType::F32 | DType::BF16);
    typed && in_pieces(tensor) && tensor.cols().is_multiple_of(4)
}
