//! Random operands, made once and repeated: large enough that no cache line is met twice in one op.

use crate::backend::{Backend, Memory};
use crate::batch::{Batch, BatchLimits, BatchShape, Segment, Segments};
use crate::conformance::{Fill, Stream};
use crate::cpu::narrow;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};
use crate::weight::{Format, LocalFuture, Plane, Source, StoredPart, StoredWeight, Weight};
use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of the pool that planes are cut from: as many as one read asks for at most.
const POOL: usize = 8 << 20;

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
pub(super) struct Data<'a, B> {
    device: &'a B,
    stream: Stream,
    /// Codes of quantised elements with their block scales, and bf16 elements of order 1.
    pools: [Rc<Pool>; 2],
}

impl<'a, B: Backend> Data<'a, B> {
    pub fn new(device: &'a B) -> Self {
        let mut stream = Stream::new("bench", "values");
        // Neither large nor NaN.
        let codes: Vec<u8> =
            (0..POOL / 8).flat_map(|_| stream.next_u64().to_le_bytes().map(|b| b & 0xbf)).collect();
        // Between 0.25 and 1.
        let scales: Vec<u8> = codes.iter().map(|b| 0x28 | b & 15).collect();
        let values = narrow(&stream.values(Fill::Normal(1.0), POOL / 8), DType::BF16);
        let values: Vec<u8> = values.iter().copied().cycle().take(POOL).collect();
        let pools = [[codes.into(), scales.into()], [values.into(), Bytes::new()]]
            .map(|files| Rc::new(Pool { files }));
        Self { device, stream, pools }
    }

    /// An activation of normal deviates. `[rows, cols]`
    pub fn activation(&mut self, rows: usize, cols: usize) -> Result<Tensor<B>> {
        self.tensor(rows, cols, self.device.policy().activations)
    }

    /// Normal deviates. `[rows, cols]`
    pub fn tensor(&mut self, rows: usize, cols: usize, dtype: DType) -> Result<Tensor<B>> {
        let tensor = self.device.tensor(rows, cols, dtype, Memory::Scratch, "values")?;
        let part = self.stream.values(Fill::Normal(1.0), (rows * cols).min(1 << 20));
        let part = narrow(&part, dtype);
        let count = rows * cols * dtype.bytes();
        let bytes: Vec<u8> = part.iter().copied().cycle().take(count).collect();
        self.device.write(&tensor, &bytes)?;
        Ok(tensor)
    }

    /// f32 values. `[rows, cols]`
    pub fn values(&mut self, rows: usize, cols: usize, fill: Fill) -> Result<Tensor<B>> {
        let tensor = self.device.tensor(rows, cols, DType::F32, Memory::Scratch, "values")?;
        let part = self.stream.values(fill, (rows * cols).min(1 << 20));
        let all: Vec<f32> = part.iter().copied().cycle().take(rows * cols).collect();
        self.device.write(&tensor, bytemuck::cast_slice(&all))?;
        Ok(tensor)
    }

    /// A u32 table. `[rows, cols]`
    pub fn table(&self, rows: usize, cols: usize, values: &[u32]) -> Result<Tensor<B>> {
        let tensor = self.device.tensor(rows, cols, DType::U32, Memory::Scratch, "table")?;
        self.device.write(&tensor, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// Distinct experts for each row. `[rows, top_k]`
    pub fn experts(&mut self, rows: usize, top_k: usize, experts: u32) -> Result<Tensor<B>> {
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
    pub async fn weight(
        &mut self,
        experts: usize,
        rows: usize,
        cols: usize,
        format: Format,
    ) -> Result<Weight<B>> {
        let source = &self.pools[usize::from(format == Format::BF16)];
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
        self.device.load(&stored).await
    }

    /// The tables of `count` segments of `len` rows at `position`, slots in falling order.
    pub fn segments(&self, count: u32, len: u32, position: u32) -> Result<Segments<B>> {
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
