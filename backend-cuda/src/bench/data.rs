//! Random operands, made once and repeated: large enough that no cache line is met twice in one op.

use crate::cuda::Cuda;
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

/// Bytes of the pool that planes are cut from: as many as one read asks for at most.
const POOL: usize = 8 << 20;

/// The back end answers without an event loop.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

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
    cuda: &'a Cuda,
    stream: Stream,
    values: Vec<u8>,
}

impl<'a> Data<'a> {
    pub fn new(cuda: &'a Cuda) -> Self {
        let mut stream = Stream::new("bench", "values");
        let values = bf16(&stream.values(Fill::Normal(1.0), POOL / 8));
        Self { cuda, stream, values }
    }

    fn bytes(&self, count: usize) -> Vec<u8> {
        self.values.iter().copied().cycle().take(count).collect()
    }

    /// A bf16 activation of normal deviates. `[rows, cols]`
    pub fn activation(&mut self, rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let tensor = self.cuda.tensor(rows, cols, DType::BF16, Memory::Scratch, "activation")?;
        let bytes = self.bytes(rows * cols * 2);
        self.cuda.write(&tensor, &bytes)?;
        Ok(tensor)
    }

    /// f32 values. `[rows, cols]`
    pub fn values(&mut self, rows: usize, cols: usize, fill: Fill) -> Result<Tensor<Cuda>> {
        let tensor = self.cuda.tensor(rows, cols, DType::F32, Memory::Scratch, "values")?;
        let part = self.stream.values(fill, (rows * cols).min(1 << 20));
        let all: Vec<f32> = part.iter().copied().cycle().take(rows * cols).collect();
        self.cuda.write(&tensor, bytemuck::cast_slice(&all))?;
        Ok(tensor)
    }

    /// A u32 table. `[rows, cols]`
    pub fn table(&self, rows: usize, cols: usize, values: &[u32]) -> Result<Tensor<Cuda>> {
        let tensor = self.cuda.tensor(rows, cols, DType::U32, Memory::Scratch, "table")?;
        self.cuda.write(&tensor, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// Distinct experts for each row. `[rows, top_k]`
    pub fn experts(&mut self, rows: usize, top_k: usize, experts: u32) -> Result<Tensor<Cuda>> {
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
    ) -> Result<Weight<Cuda>> {
        let codes: Vec<u8> = match format {
            Format::BF16 => self.values.clone().into_iter().cycle().take(POOL).collect(),
            _ => (0..POOL / 8)
                .flat_map(|_| self.stream.next_u64().to_le_bytes().map(|b| b & 0xbf))
                .collect(),
        };
        // Block scales between 0.25 and 1.
        let scales: Vec<u8> = codes.iter().map(|b| 0x28 | b & 15).collect();
        let source = Rc::new(Pool { files: [codes.into(), scales.into()] });
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
        block_on(self.cuda.load(&StoredWeight { name: "weight".into(), rows, cols, format, parts }))
    }

    /// The tables of `count` segments of `len` rows at `position`, slots in falling order.
    pub fn segments(&self, count: u32, len: u32, position: u32) -> Result<Segments<Cuda>> {
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

fn bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect()
}
