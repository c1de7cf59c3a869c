//! Weights on the device: the stored bytes, experts one after the other, nothing widened.
//!
//! Planes: the elements, the f32 scale of each matrix, the block scales where the format has them. NVFP4 codes are
//! reordered inside every 8 columns by `kernels/common_load.cu`, so that one shift and one mask give two neighbours; codes
//! and block scales lie by stripes of 16 rows, and scales keep no sign.

use crate::cuda::Cuda;
use crate::driver::{Block, Shape};
use crate::kernels::Args;
use crate::memory::CudaBuffer;
use crate::staging::SLOT_BYTES;
use crate::view::{bank, narrow};
use whipsnake_core::backend::Memory;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::weight::{Format, NVFP4_GROUP, Plane, StoredWeight, Weight};

/// Rows whose codes and block scales lie together: `STRIPE` of `kernels/common.cuh`.
pub(crate) const STRIPE: usize = 16;

/// Threads that reorder a stripe, and the blocks of columns each may hold: `THREADS` and `MOST` of `kernels/common_load.cu`.
const REORDER_THREADS: usize = 512;
const REORDER_MOST: usize = 40;

impl Cuda {
    pub(crate) async fn load_weight(&self, stored: &StoredWeight) -> Result<Weight<Self>> {
        let (rows, cols, format) = (stored.rows, stored.cols, stored.format);
        if format == Format::Nvfp4 && !cols.is_multiple_of(NVFP4_GROUP) {
            return Err(Error::checkpoint(format!(
                "{}: {cols} columns, want a multiple of {NVFP4_GROUP} for nvfp4",
                stored.name
            )));
        }
        if format == Format::Nvfp4 && cols > REORDER_THREADS * REORDER_MOST {
            return Err(Error::checkpoint(format!(
                "{}: {cols} columns, want at most {} for nvfp4 on CUDA; try another back end",
                stored.name,
                REORDER_THREADS * REORDER_MOST
            )));
        }
        let experts = stored.parts.len();
        let (data_bytes, scale_bytes) =
            (format.data_bytes(rows, cols), format.scale_bytes(rows, cols));
        let label = |what: &str| format!("{} ({what})", stored.name);
        let data =
            self.pool().allocate(data_bytes * experts, Memory::Weights, &label("elements"))?;
        let scale = self.pool().allocate(4 * experts, Memory::Weights, &label("scale"))?;
        let scales: Vec<f32> = stored.parts.iter().map(|part| part.scale).collect();
        self.upload(scale.pointer(), bytemuck::cast_slice(&scales))?;
        let mut planes = vec![data, scale];
        if scale_bytes > 0 {
            planes.push(self.pool().allocate(
                scale_bytes * experts,
                Memory::Weights,
                &label("block scales"),
            )?);
        }
        for (index, part) in stored.parts.iter().enumerate() {
            self.load_plane(&part.name, &part.data, data_bytes, &planes[0], index).await?;
            if let Some(buffer) = planes.get(2) {
                let scales = part.scales.as_ref().ok_or_else(|| {
                    Error::checkpoint(format!(
                        "{}: no block scales, want {scale_bytes} bytes",
                        part.name
                    ))
                })?;
                self.load_plane(&part.name, scales, scale_bytes, buffer, index).await?;
            }
        }
        let weight =
            Weight { name: stored.name.clone(), rows, cols, experts, format, planes, scales };
        if format == Format::Nvfp4 {
            self.reorder(&weight)?;
        }
        Ok(weight)
    }

    /// Copies one matrix's plane to its place, a slot of the ring at a time.
    async fn load_plane(
        &self,
        name: &str,
        plane: &Plane,
        want: usize,
        to: &CudaBuffer,
        index: usize,
    ) -> Result<()> {
        if plane.len() != want as u64 {
            return Err(Error::checkpoint(format!("{name}: {} bytes, want {want}", plane.len())));
        }
        let mut done = 0u64;
        while done < plane.len() {
            let end = plane.len().min(done + SLOT_BYTES as u64);
            let bytes = plane.part(done..end).await?;
            self.upload(to.pointer() + (index * want) as u64 + done, &bytes)?;
            done = end;
        }
        Ok(())
    }

    fn upload(&self, pointer: u64, bytes: &[u8]) -> Result<()> {
        let block = Block { pointer, pitch: bytes.len(), width: bytes.len(), rows: 1 };
        self.staging().upload(block, bytes)
    }

    fn reorder(&self, weight: &Weight<Self>) -> Result<()> {
        let mut args = Args::new();
        args.push(bank(weight));
        let stripes = weight.experts * weight.rows.div_ceil(STRIPE);
        let shape =
            Shape { grid: [narrow(stripes), 1, 1], threads: narrow(REORDER_THREADS), shared: 0 };
        self.launch("common_load", "load_nvfp4", shape, &mut args)
    }
}
