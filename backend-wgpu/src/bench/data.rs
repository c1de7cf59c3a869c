//! Random operands.

use crate::Wgpu;
use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;
use whipsnake_core::backend::{Backend, Memory};
use whipsnake_core::batch::{Batch, BatchLimits, BatchShape, Segment, Segments};
use whipsnake_core::conformance::{Fill, Stream};
use whipsnake_core::error::{Error, Result};
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::{
    Format, LocalFuture, Plane, Source, StoredPart, StoredWeight, Weight,
};

/// Bytes of the pool that planes are cut from: as many as one read of the loader asks for at most.
const POOL: usize = 16 << 20;

/// Serves the same random bytes at any place of its files.
struct Pool {
    files: [Bytes; 2],
}

impl Source for Pool {
    fn read(&self, file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let bytes = self.files.get(file).filter(|bytes| len <= bytes.len());
        let part = bytes.map(|bytes| bytes.slice(..len));
        Box::pin(std::future::ready(part.ok_or_else(|| Error::device("a read past the pool"))))
    }
}

/// Makes operands.
pub(super) struct Data<'a> {
    gpu: &'a Wgpu,
    stream: Stream,
    source: [Rc<Pool>; 2],
}

impl<'a> Data<'a> {
    pub fn new(gpu: &'a Wgpu) -> Self {
        let mut stream = Stream::new("bench", "values");
        // Random codes that are neither large nor NaN, and bf16 values of order 1.
        let codes: Vec<u8> =
            (0..POOL / 8).flat_map(|_| stream.next_u64().to_le_bytes().map(|b| b & 0xbf)).collect();
        let scales: Vec<u8> = codes.iter().map(|b| 0x28 | b & 15).collect();
        let halves: Vec<u8> = stream
            .values(Fill::Normal(1.0), POOL / 8)
            .iter()
            .map(|v| (v.to_bits() >> 16) as u16)
            .cycle()
            .take(POOL / 2)
            .flat_map(u16::to_le_bytes)
            .collect();
        let pool =
            |data: Vec<u8>, scales: Vec<u8>| Rc::new(Pool { files: [data.into(), scales.into()] });
        Self { gpu, stream, source: [pool(codes, scales), pool(halves, Vec::new())] }
    }

    /// f32 values. `[rows, cols]`
    pub fn values(&mut self, rows: usize, cols: usize, fill: Fill) -> Result<Tensor<Wgpu>> {
        let tensor = self.gpu.tensor(rows, cols, DType::F32, Memory::Scratch, "values")?;
        let part = self.stream.values(fill, (rows * cols).min(1 << 20));
        let all: Vec<f32> = part.iter().copied().cycle().take(rows * cols).collect();
        self.gpu.write(&tensor, bytemuck::cast_slice(&all))?;
        Ok(tensor)
    }

    /// An activation of order 1. `[rows, cols]`
    pub fn activation(&mut self, rows: usize, cols: usize) -> Result<Tensor<Wgpu>> {
        self.values(rows, cols, Fill::Normal(1.0))
    }

    /// A u32 table. `[rows, cols]`
    pub fn table(&self, rows: usize, cols: usize, values: &[u32]) -> Result<Tensor<Wgpu>> {
        let tensor = self.gpu.tensor(rows, cols, DType::U32, Memory::Scratch, "table")?;
        self.gpu.write(&tensor, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// Distinct experts for each row. `[rows, top_k]`
    pub fn experts(&mut self, rows: usize, top_k: usize, experts: u32) -> Result<Tensor<Wgpu>> {
        let mut ids = Vec::new();
        for _ in 0..rows {
            let start = ids.len();
            while ids.len() < start + top_k {
                let id = self.stream.below(experts);
                if !ids[start..].contains(&id) {
                    ids.push(id);
                }
            }
        }
        self.table(rows, top_k, &ids)
    }

    /// A random weight.
    pub fn weight(
        &mut self,
        experts: usize,
        rows: usize,
        cols: usize,
        format: Format,
    ) -> Result<Weight<Wgpu>> {
        let source = &self.source[usize::from(format == Format::BF16)];
        let plane =
            |file, bytes: usize| Plane { source: source.clone(), file, range: 0..bytes as u64 };
        let scale_bytes = format.scale_bytes(rows, cols);
        let part = StoredPart {
            name: "weight".into(),
            data: plane(0, format.data_bytes(rows, cols)),
            scales: (scale_bytes > 0).then(|| plane(1, scale_bytes)),
            scale: 0.01,
        };
        let parts = vec![part; experts];
        let stored = StoredWeight { name: "weight".into(), rows, cols, format, parts };
        pollster::block_on(self.gpu.load(&stored))
    }

    /// The tables of `count` segments of `len` rows at `position`, slots in falling order.
    pub fn segments(&self, count: u32, len: u32, position: u32) -> Result<Segments<Wgpu>> {
        let segments: Vec<_> = (0..count)
            .map(|i| Segment { first_row: i * len, len, slot: count - 1 - i, position })
            .collect();
        let (rows, slots) = ((count * len) as usize, count as usize);
        let limits = BatchLimits { slots, context: (position + len) as usize, vocabulary: 1, rows };
        let batch = Batch::new(&limits, vec![0; rows], segments.clone())?;
        Ok(Segments {
            table: self.table(slots, 4, bytemuck::cast_slice(&segments))?,
            places: self.table(rows, 4, bytemuck::cast_slice(&batch.places(rows)))?,
            shape: BatchShape::of(&batch),
        })
    }
}
