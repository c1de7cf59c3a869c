//! Random operands, made once and repeated: large enough that no cache line is met twice in one op.

use crate::backend::{Backend, Memory};
use crate::batch::{Batch, BatchLimits, BatchShape, Segment, Segments};
use crate::conformance::{Fill, Stream};
use crate::cpu::{narrow, widen};
use crate::error::{Error, Result};
use crate::quant::{e2m1_to_f32, e4m3_to_f32};
use crate::tensor::{DType, Tensor};
use crate::weight::{
    Format, LocalFuture, NVFP4_GROUP, Plane, Source, StoredPart, StoredWeight, Weight,
};
use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of the pool that planes are cut from.
const POOL: usize = 8 << 20;

/// Scale of the quantised matrices, so that their products are of order 1.
const SCALE: f32 = 0.01;

/// Files of random bytes without end: the same ones again after each [`POOL`].
struct Pool {
    files: [Bytes; 2],
}

impl Pool {
    fn part(&self, file: usize, start: usize, len: usize) -> Bytes {
        let (bytes, first) = (&self.files[file], start % POOL);
        if first + len <= bytes.len() {
            return bytes.slice(first..first + len);
        }
        bytes.iter().cycle().skip(first).take(len).copied().collect()
    }
}

impl Source for Pool {
    fn read(&self, file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let (start, len) = (place(range.start), place(range.end - range.start));
        let there = self.files.get(file).is_some_and(|bytes| !bytes.is_empty());
        let part = there.then(|| self.part(file, start, len));
        Box::pin(std::future::ready(part.ok_or_else(|| Error::device("a read of no pool"))))
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
            scale: if matches!(format, Format::Nvfp4 | Format::Fp8) { SCALE } else { 1.0 },
        };
        let parts = vec![part; experts];
        let stored = StoredWeight { name: "weight".into(), rows, cols, format, parts };
        self.device.load(&stored).await
    }

    /// A row of every matrix of a weight that [`Data::weight`] made.
    pub fn weight_row(&self, format: Format, cols: usize, row: usize) -> Vec<f32> {
        let pool = &self.pools[usize::from(format == Format::BF16)];
        let bytes = format.data_bytes(1, cols);
        let data = pool.part(0, row * bytes, bytes);
        match format {
            Format::F32 => widen(&data, DType::F32),
            Format::F16 => widen(&data, DType::F16),
            Format::BF16 => widen(&data, DType::BF16),
            Format::Fp8 => data.iter().map(|byte| e4m3_to_f32(*byte) * SCALE).collect(),
            Format::Nvfp4 => {
                let blocks = cols / NVFP4_GROUP;
                let scales = pool.part(1, row * blocks, blocks);
                let value = |col: usize| {
                    let code = data[col / 2] >> (col % 2 * 4);
                    e2m1_to_f32(code) * e4m3_to_f32(scales[col / NVFP4_GROUP]) * SCALE
                };
                (0..cols).map(value).collect()
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Cpu;

    #[test]
    fn rows_of_weights_are_what_the_device_was_given() {
        let cpu = Cpu::reference();
        let mut data = Data::new(&cpu);
        // More than a pool of codes, so that rows lie across its end.
        let (rows, cols) = (2100, 8192);
        for format in [Format::Nvfp4, Format::Fp8, Format::BF16] {
            let weight = pollster::block_on(data.weight(1, rows, cols, format)).expect("a weight");
            for row in [0, 1, 511, 1023, 1024, 2047, 2048, rows - 1] {
                assert_eq!(
                    data.weight_row(format, cols, row),
                    weight.row(0, row),
                    "{format} {row}"
                );
            }
        }
    }
}
