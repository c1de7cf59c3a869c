//! Weights on the device: packed as stored, in buffers that a binding covers.
//!
//! A plain weight is cut between rows, a bank between experts. Planes: the elements of each piece, then the block
//! scales of each piece, then, where the format has a scale of the matrix, one f32 an expert.

use crate::Wgpu;
use crate::backend::POLICY;
use crate::buffer::{ALIGNMENT, Buffer};
use std::ops::Range;
use whipsnake_core::backend::Memory;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::weight::{Format, Plane, StoredWeight, Weight};

/// Most bytes of a weight that the host holds at once. In the browser they pass through the memory of the program, which
/// never shrinks again, for several weights at once.
const CHUNK: u64 = if cfg!(target_arch = "wasm32") { 2 << 20 } else { 16 << 20 };
/// Bytes after which uploads are handed to the device, so that their staging memory is free again.
#[cfg(target_arch = "wasm32")]
const SUBMIT: u64 = 32 << 20;

/// Rows of a plain weight, or experts of a bank, that lie in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Rows or experts.
    pub units: usize,
    /// As many in one buffer; the last may hold fewer.
    pub per_piece: usize,
}

impl Split {
    /// Cuts `units` of `unit_bytes` into pieces of at most `most` bytes; `None` where one does not fit.
    fn of(units: usize, unit_bytes: usize, most: u64) -> Option<Self> {
        let fit = most / (unit_bytes as u64).max(1);
        let per_piece = usize::try_from(fit).unwrap_or(usize::MAX).min(units.max(1));
        (per_piece > 0).then_some(Self { units, per_piece })
    }

    /// Number of buffers.
    pub fn pieces(self) -> usize {
        self.units.div_ceil(self.per_piece).max(1)
    }

    /// Units of piece `index`.
    pub fn range(self, index: usize) -> Range<usize> {
        let start = index * self.per_piece;
        start..(start + self.per_piece).min(self.units)
    }
}

/// A piece of a weight on the device.
pub(crate) struct Piece<'a> {
    /// First row of a plain weight, or first expert of a bank.
    pub first: usize,
    /// Rows or experts.
    pub count: usize,
    /// Elements.
    pub data: &'a Buffer,
    /// Block scales; the elements again where the format has none, so that every format binds alike.
    pub scales: &'a Buffer,
}

impl Wgpu {
    /// Most bytes of one weight buffer.
    fn piece_bytes(&self) -> u64 {
        let limits = &self.limits;
        let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let most = self.piece_cap.map_or(most, |cap| cap.min(most));
        most / ALIGNMENT * ALIGNMENT
    }

    fn split(&self, experts: usize, rows: usize, cols: usize, format: Format) -> Option<Split> {
        let bank = experts > 1;
        let (units, unit_rows) = if bank { (experts, rows) } else { (rows, 1) };
        Split::of(units, format.data_bytes(unit_rows, cols), self.piece_bytes())
    }

    /// The pieces of a loaded weight.
    pub(crate) fn pieces<'a>(&self, weight: &'a Weight<Self>) -> Vec<Piece<'a>> {
        let split = self.split(weight.experts, weight.rows, weight.cols, weight.format);
        let split = split.expect("a loaded weight was split the same way");
        let count = split.pieces();
        let piece = |i: usize| {
            let units = split.range(i);
            let scales = if weight.format == Format::Nvfp4 { count + i } else { i };
            Piece {
                first: units.start,
                count: units.len(),
                data: &weight.planes[i],
                scales: &weight.planes[scales],
            }
        };
        (0..count).map(piece).collect()
    }

    /// Scales of a bank's matrices, one f32 an expert, or some buffer where the format has none.
    pub(crate) fn matrix_scales<'a>(&self, weight: &'a Weight<Self>) -> &'a Buffer {
        weight.planes.last().expect("a weight has a plane")
    }

    /// Uploads a weight, packed as stored.
    pub(crate) async fn load_weight(&self, stored: &StoredWeight) -> Result<Weight<Self>> {
        let outcome = self.load_pieces(stored).await;
        #[cfg(not(target_arch = "wasm32"))]
        if outcome.is_err() {
            // What is in hand for the pieces keeps them alive; the first error is the one to tell.
            let _ = self.end_uploads();
        }
        outcome
    }

    async fn load_pieces(&self, stored: &StoredWeight) -> Result<Weight<Self>> {
        let (rows, cols, format, experts) =
            (stored.rows, stored.cols, stored.format, stored.parts.len());
        let split = self.split(experts, rows, cols, format).ok_or_else(|| {
            Error::device(format!(
                "wgpu: {}: one row or expert of {} bytes is more than the device binds ({})",
                stored.name,
                format.data_bytes(if experts > 1 { rows } else { 1 }, cols),
                self.piece_bytes()
            ))
        })?;
        check_lengths(stored)?;
        let mut planes = Vec::new();
        let unit_rows = if experts > 1 { rows } else { 1 };
        let data: Vec<_> = stored.parts.iter().map(|p| &p.data).collect();
        let unit_bytes = format.data_bytes(unit_rows, cols) as u64;
        for index in 0..split.pieces() {
            planes.push(
                self.upload_piece(&stored.name, &data, split.range(index), unit_bytes).await?,
            );
        }
        if format == Format::Nvfp4 {
            let scales: Vec<_> = stored.parts.iter().filter_map(|p| p.scales.as_ref()).collect();
            let unit_bytes = format.scale_bytes(unit_rows, cols) as u64;
            for index in 0..split.pieces() {
                let units = split.range(index);
                planes.push(self.upload_piece(&stored.name, &scales, units, unit_bytes).await?);
            }
        }
        let scales: Vec<f32> = stored.parts.iter().map(|p| p.scale).collect();
        if POLICY.matrix_scales.kept(format) {
            let buffer = self.buffer(scales.len() as u64 * 4, Memory::Weights, &stored.name)?;
            self.queue.write_buffer(buffer.raw(), 0, bytemuck::cast_slice(&scales));
            planes.push(buffer);
        }
        Ok(Weight { name: stored.name.clone(), rows, cols, experts, format, planes, scales })
    }

    /// A buffer of units `units`: rows of the one plane, or whole planes of a bank.
    async fn upload_piece(
        &self,
        name: &str,
        planes: &[&Plane],
        units: Range<usize>,
        unit_bytes: u64,
    ) -> Result<Buffer> {
        let buffer = self.buffer(units.len() as u64 * unit_bytes, Memory::Weights, name)?;
        let mut filler = Filler { backend: self, buffer: &buffer, at: 0, carry: Vec::new() };
        if let [plane] = planes {
            let bytes = units.start as u64 * unit_bytes..units.end as u64 * unit_bytes;
            filler.copy(plane, bytes).await?;
        } else {
            for plane in &planes[units] {
                filler.copy(plane, 0..plane.len()).await?;
            }
        }
        filler.finish().await?;
        Ok(buffer)
    }
}

/// Refuses planes whose length does not fit the shape.
fn check_lengths(stored: &StoredWeight) -> Result<()> {
    let (rows, cols, format) = (stored.rows, stored.cols, stored.format);
    for part in &stored.parts {
        let scales = part.scales.as_ref().map_or(0, Plane::len);
        let wants = [
            (part.data.len(), format.data_bytes(rows, cols) as u64, "elements"),
            (scales, format.scale_bytes(rows, cols) as u64, "block scales"),
        ];
        for (found, want, what) in wants {
            if found != want {
                return Err(Error::checkpoint(format!(
                    "{}: {found} bytes of {what}, want {want}",
                    part.name
                )));
            }
        }
    }
    Ok(())
}

/// Writes a stream of bytes to a buffer in whole words.
struct Filler<'a> {
    backend: &'a Wgpu,
    buffer: &'a Buffer,
    at: u64,
    /// Fewer than four bytes that the next chunk completes.
    carry: Vec<u8>,
}

impl Filler<'_> {
    async fn copy(&mut self, plane: &Plane, bytes: Range<u64>) -> Result<()> {
        let mut start = bytes.start;
        while start < bytes.end {
            let end = bytes.end.min(start + CHUNK);
            let chunk = plane.part(start..end).await?;
            self.push(&chunk).await?;
            start = end;
        }
        Ok(())
    }

    async fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let mut joined = std::mem::take(&mut self.carry);
        let bytes = match joined.is_empty() {
            true => bytes,
            false => {
                joined.extend_from_slice(bytes);
                &joined[..]
            }
        };
        let (whole, rest) = bytes.split_at(bytes.len() / 4 * 4);
        self.carry = rest.to_vec();
        self.write(whole).await
    }

    #[cfg(not(target_arch = "wasm32"))]
    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.backend.upload_weight(self.buffer, self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    #[cfg(target_arch = "wasm32")]
    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.backend.queue.write_buffer(self.buffer.raw(), self.at, bytes);
        self.at += bytes.len() as u64;
        let staged = &self.backend.staged;
        staged.set(staged.get() + bytes.len() as u64);
        if staged.get() < SUBMIT {
            return Ok(());
        }
        staged.set(0);
        self.backend.flush(|_| ())?;
        self.backend.settled().await
    }

    async fn finish(mut self) -> Result<()> {
        let mut rest = std::mem::take(&mut self.carry);
        rest.resize(rest.len().next_multiple_of(4), 0);
        self.write(&rest).await
    }
}

#[cfg(test)]
mod tests {
    use super::Split;

    #[test]
    fn a_weight_that_fits_is_one_piece() {
        let split = Split::of(1000, 64, 128 << 20).expect("it fits");
        assert_eq!((split.pieces(), split.range(0)), (1, 0..1000));
    }

    #[test]
    fn pieces_cover_every_row_once() {
        let split = Split::of(1000, 64, 64 * 300).expect("it fits");
        let ranges: Vec<_> = (0..split.pieces()).map(|i| split.range(i)).collect();
        assert_eq!(ranges, [0..300, 300..600, 600..900, 900..1000]);
    }

    #[test]
    fn a_row_past_the_limit_is_refused() {
        assert_eq!(Split::of(10, 4096, 4095), None);
    }
}
