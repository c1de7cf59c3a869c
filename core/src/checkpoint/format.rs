//! How each weight is stored: decided tensor by tensor from dtype, shape and companions on disk.

use super::header::TensorInfo;
use super::layout::Tensors;
use crate::error::{Error, Result};
use crate::model::spec::{ParamRef, WeightRef};
use crate::weight::{Format, NVFP4_GROUP};
use safetensors::Dtype;
use serde::Serialize;

/// What a stored tensor is to its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Elements or codes.
    Data,
    /// A scale for every block of columns.
    BlockScales,
    /// One scale for the matrix.
    MatrixScale,
    /// A small parameter.
    Param,
}

/// A tensor on disk, as one part of a weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredTensor {
    /// Its name.
    pub name: String,
    /// What it is to its weight.
    pub role: Role,
    /// Its dtype as the file spells it.
    pub dtype: Dtype,
    /// Bytes on disk.
    pub bytes: u64,
}

/// How a weight is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// One format for all its matrices.
    pub format: Format,
    /// Its tensors, matrix by matrix: data, block scales, matrix scale.
    pub tensors: Vec<StoredTensor>,
}

impl Stored {
    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Bytes of the planes that a device keeps; the matrix scales are numbers beside them.
    pub fn plane_bytes(&self) -> u64 {
        self.tensors.iter().filter(|t| t.role != Role::MatrixScale).map(|t| t.bytes).sum()
    }
}

/// Names of a matrix's companions. `stem` is the name without `.weight`.
pub(super) fn companion(name: &str, suffix: &str) -> String {
    format!("{}.{suffix}", name.strip_suffix(".weight").unwrap_or(name))
}

/// The format and tensors of `weight`.
pub(super) fn describe(tensors: &Tensors, weight: &WeightRef) -> Result<Stored> {
    let mut found: Option<Format> = None;
    let mut list = Vec::new();
    for name in &weight.names {
        let format = matrix(tensors, name, weight.rows, weight.cols, &mut list)?;
        if *found.get_or_insert(format) != format {
            let first = &weight.names[0];
            return Err(Error::checkpoint(format!(
                "tensor `{name}` is stored as {format}, `{first}` of the same bank of experts as {}; a bank has one format",
                found.unwrap_or(format)
            )));
        }
    }
    let format = found.ok_or_else(|| Error::checkpoint("a weight without tensors"))?;
    Ok(Stored { format, tensors: list })
}

fn matrix(
    tensors: &Tensors,
    name: &str,
    rows: usize,
    cols: usize,
    list: &mut Vec<StoredTensor>,
) -> Result<Format> {
    let info = &tensors.get(name).ok_or_else(|| missing(tensors, name, &[rows, cols]))?.info;
    let format = match info.dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::BF16,
        Dtype::F8_E4M3 => Format::Fp8,
        Dtype::U8 => Format::Nvfp4,
        _ => return Err(unknown(tensors, name, info)),
    };
    let width = if format == Format::Nvfp4 { cols / 2 } else { cols };
    if info.shape != [rows, width] {
        let packed = if format == Format::Nvfp4 { ", two codes a byte" } else { "" };
        return Err(Error::checkpoint(format!(
            "tensor `{name}`: shape {:?}, want [{rows}, {width}] by config.json{packed}",
            info.shape
        )));
    }
    list.push(stored(name, Role::Data, info));
    match format {
        Format::F32 | Format::F16 | Format::BF16 => {}
        Format::Fp8 => list.push(fp8_scale(tensors, name, info)?),
        Format::Nvfp4 => list.extend(nvfp4_scales(tensors, name, rows, cols)?),
    }
    Ok(format)
}

fn stored(name: impl Into<String>, role: Role, info: &TensorInfo) -> StoredTensor {
    StoredTensor { name: name.into(), role, dtype: info.dtype, bytes: info.bytes() }
}

fn fp8_scale(tensors: &Tensors, name: &str, data: &TensorInfo) -> Result<StoredTensor> {
    if tensors.has(&companion(name, "weight_scale_inv")) {
        return Err(Error::checkpoint(format!(
            "tensor `{name}` is FP8 with a scale for every block (weight_scale_inv), which is not supported; use a checkpoint with one scale a matrix"
        )));
    }
    matrix_scale(tensors, name, "weight_scale", data)
}

fn nvfp4_scales(
    tensors: &Tensors,
    name: &str,
    rows: usize,
    cols: usize,
) -> Result<[StoredTensor; 2]> {
    let data = &tensors.get(name).ok_or_else(|| missing(tensors, name, &[rows, cols]))?.info;
    if !cols.is_multiple_of(NVFP4_GROUP) {
        return Err(Error::checkpoint(format!(
            "tensor `{name}`: {cols} columns are no multiple of {NVFP4_GROUP}, the group of NVFP4"
        )));
    }
    let scales = companion(name, "weight_scale");
    let info = &tensors.get(&scales).ok_or_else(|| unscaled(name, data, &scales))?.info;
    let want = [rows, cols / NVFP4_GROUP];
    if info.dtype != Dtype::F8_E4M3 || info.shape != want {
        return Err(Error::checkpoint(format!(
            "tensor `{scales}`: {info}, want F8_E4M3 {want:?} (a scale for every {NVFP4_GROUP} columns)"
        )));
    }
    Ok([
        stored(&scales, Role::BlockScales, info),
        matrix_scale(tensors, name, "weight_scale_2", data)?,
    ])
}

/// One f32 for the whole matrix, shaped `[]` or `[1]`.
fn matrix_scale(
    tensors: &Tensors,
    name: &str,
    suffix: &str,
    data: &TensorInfo,
) -> Result<StoredTensor> {
    let scale = companion(name, suffix);
    let info = &tensors.get(&scale).ok_or_else(|| unscaled(name, data, &scale))?.info;
    if info.dtype != Dtype::F32 || info.elements() != 1 {
        return Err(Error::checkpoint(format!(
            "tensor `{scale}`: {info}, want F32 [] (one scale for the matrix); scales per channel or block are not supported"
        )));
    }
    Ok(stored(scale, Role::MatrixScale, info))
}

fn unscaled(name: &str, data: &TensorInfo, scale: &str) -> Error {
    Error::checkpoint(format!(
        "tensor `{name}` is {data}, but its scale `{scale}` is missing; download the checkpoint again"
    ))
}

/// The error for a tensor that is not there, with what is there instead.
fn missing(tensors: &Tensors, name: &str, want: &[usize]) -> Error {
    let has = |suffix: &str| tensors.has(&companion(name, suffix));
    let text = if has("weight_packed") {
        "is packed by compressed-tensors (weight_packed), which is not supported; use NVIDIA's modelopt checkpoint or the unquantised one".to_owned()
    } else if has("qweight") {
        "is packed by GPTQ or AWQ (qweight), which is not supported; use the unquantised checkpoint"
            .to_owned()
    } else if has("weight_blocks") || has("blocks") {
        "is packed as MXFP4 (blocks), which is not supported; use the unquantised checkpoint"
            .to_owned()
    } else if name == "lm_head.weight" {
        format!(
            "is missing, want {want:?}: config.json does not tie the head to the embedding (tie_word_embeddings); download the checkpoint again"
        )
    } else {
        format!("is missing, want {want:?} by config.json; download the checkpoint again")
    };
    Error::checkpoint(format!("tensor `{name}` {text}"))
}

fn unknown(tensors: &Tensors, name: &str, info: &TensorInfo) -> Error {
    let text = if info.dtype == Dtype::U32 && tensors.has(&companion(name, "scales")) {
        "quantised by MLX, which is not supported; use the original checkpoint"
    } else {
        "not supported; want F32, F16, BF16, NVFP4 (U8 with weight_scale and weight_scale_2) or FP8 (F8_E4M3 with weight_scale)"
    };
    Error::checkpoint(format!("tensor `{name}` is {info}, {text}"))
}

/// The tensor of `param`: a plain float dtype, and the shape of the op's view up to dimensions of 1.
pub(super) fn describe_param(tensors: &Tensors, param: &ParamRef) -> Result<StoredTensor> {
    let want = squeezed(&[param.rows, param.cols]);
    let name = &param.name;
    let info = &tensors.get(name).ok_or_else(|| missing(tensors, name, &want))?.info;
    if !matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        return Err(Error::checkpoint(format!(
            "tensor `{name}` is {info}, want F32, F16 or BF16 {want:?}"
        )));
    }
    if squeezed(&info.shape) != want {
        return Err(Error::checkpoint(format!(
            "tensor `{name}`: shape {:?}, want {want:?} by config.json (dimensions of 1 aside)",
            info.shape
        )));
    }
    Ok(stored(name, Role::Param, info))
}

fn squeezed(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|&d| d != 1).collect()
}
