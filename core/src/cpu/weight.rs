//! Weights on the CPU: the checkpoint's own bytes, read in place.

use super::{Cpu, CpuBuffer};
use crate::backend::Ledger;
use crate::error::{Error, Result};
use crate::quant::{e2m1_to_f32, e4m3_to_f32};
use crate::tensor::DType;
use crate::weight::{Format, NVFP4_GROUP, StoredWeight, Weight};
use bytes::Bytes;
use std::cell::RefCell;
use std::rc::Rc;

/// Takes the planes of every part as they are. Planes: the elements of each part, then the block scales of each.
pub(super) async fn load(
    stored: &StoredWeight,
    ledger: &Rc<RefCell<Ledger>>,
) -> Result<Weight<Cpu>> {
    let (rows, cols, format) = (stored.rows, stored.cols, stored.format);
    let mut planes = Vec::new();
    for part in &stored.parts {
        planes.push(plane(
            &part.name,
            part.data.all().await?,
            format.data_bytes(rows, cols),
            format,
        )?);
    }
    for part in &stored.parts {
        if let Some(scales) = &part.scales {
            planes.push(plane(
                &part.name,
                scales.all().await?,
                format.scale_bytes(rows, cols),
                format,
            )?);
        }
    }
    ledger.borrow_mut().weights += stored.bytes();
    Ok(Weight {
        name: stored.name.clone(),
        rows,
        cols,
        experts: stored.parts.len(),
        format,
        planes,
        scales: stored.parts.iter().map(|p| p.scale).collect(),
    })
}

fn plane(name: &str, bytes: Bytes, want: usize, format: Format) -> Result<CpuBuffer> {
    if bytes.len() != want {
        return Err(Error::checkpoint(format!("{name}: {} bytes, want {want}", bytes.len())));
    }
    let alignment = match format {
        Format::F32 => 4,
        Format::F16 | Format::BF16 => 2,
        Format::Nvfp4 | Format::Fp8 => 1,
    };
    if bytes.as_ptr().align_offset(alignment) == 0 {
        return Ok(CpuBuffer::Stored(bytes));
    }
    // A header of odd length shifts the data; one aligned copy keeps every read a plain slice.
    let mut words = vec![0u32; want.div_ceil(4)];
    bytemuck::cast_slice_mut(&mut words)[..want].copy_from_slice(&bytes);
    Ok(CpuBuffer::Stored(Bytes::from_owner(AlignedBytes(words)).slice(..want)))
}

struct AlignedBytes(Vec<u32>);

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Weight<Cpu> {
    /// Stored elements of one row of matrix `expert`.
    pub(super) fn row_data(&self, expert: usize, row: usize) -> &[u8] {
        let width = self.format.data_bytes(1, self.cols);
        &self.planes[expert].stored()[row * width..][..width]
    }

    /// Stored block scales of one row of matrix `expert`.
    pub(super) fn row_scales(&self, expert: usize, row: usize) -> &[u8] {
        let width = self.format.scale_bytes(1, self.cols);
        &self.planes[self.experts + expert].stored()[row * width..][..width]
    }

    /// One row of matrix `expert`, dequantised.
    pub(crate) fn row(&self, expert: usize, row: usize) -> Vec<f32> {
        let data = self.row_data(expert, row);
        let scale = self.scales[expert];
        match self.format {
            Format::F32 => super::buffer::widen(data, DType::F32),
            Format::F16 => super::buffer::widen(data, DType::F16),
            Format::BF16 => super::buffer::widen(data, DType::BF16),
            Format::Fp8 => data.iter().map(|&b| e4m3_to_f32(b) * scale).collect(),
            Format::Nvfp4 => {
                let scales = self.row_scales(expert, row);
                let value = |col: usize| {
                    let byte = data[col / 2];
                    let code = if col.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
                    e2m1_to_f32(code) * e4m3_to_f32(scales[col / NVFP4_GROUP]) * scale
                };
                (0..self.cols).map(value).collect()
            }
        }
    }
}
