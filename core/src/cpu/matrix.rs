//! Stored weights as f32, in vectors, a run of columns at a time.

use super::Cpu;
use crate::weight::{Format, NVFP4_GROUP, Weight};
use pulp::Simd;

/// Stored bytes of one matrix. Unlike a [`Weight`] it crosses threads.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    /// Elements, row by row.
    pub(super) data: &'a [u8],
    /// Block scales, where the format has them.
    scales: &'a [u8],
    /// Multiplies what is decoded.
    pub(super) scale: f32,
    /// How elements are stored.
    pub(super) format: Format,
    /// Outputs.
    pub(super) rows: usize,
    /// Inputs.
    pub(super) cols: usize,
}

impl<'a> Matrix<'a> {
    pub(super) fn of(weight: &'a Weight<Cpu>, expert: usize) -> Self {
        let scales = match weight.format {
            Format::Nvfp4 => weight.planes[weight.experts + expert].stored(),
            _ => &[],
        };
        Self {
            data: weight.planes[expert].stored(),
            scales,
            scale: weight.scales[expert],
            format: weight.format,
            rows: weight.rows,
            cols: weight.cols,
        }
    }

    /// Columns `start..start + out.len()` of a row, as f32 and before the scale of the matrix; `start` is a multiple of
    /// 16.
    #[inline(always)]
    pub(super) fn decode<S: Simd>(&self, simd: S, row: usize, start: usize, out: &mut [f32]) {
        let first = row * self.cols + start;
        let elements = |bytes: usize| &self.data[first * bytes..][..out.len() * bytes];
        match self.format {
            Format::F32 => out.copy_from_slice(bytemuck::cast_slice(elements(4))),
            Format::BF16 => {
                let stored: &[u16] = bytemuck::cast_slice(elements(2));
                for (out, bits) in out.iter_mut().zip(stored) {
                    *out = f32::from_bits(u32::from(*bits) << 16);
                }
            }
            Format::F16 => {
                let stored: &[u16] = bytemuck::cast_slice(elements(2));
                for (out, bits) in out.iter_mut().zip(stored) {
                    *out = f16_to_f32(*bits);
                }
            }
            Format::Fp8 => {
                let stored = elements(1);
                for (out, byte) in out.iter_mut().zip(stored) {
                    *out = fp8_to_f32(*byte);
                }
            }
            Format::Nvfp4 => self.decode_nvfp4(simd, row, start, out),
        }
    }

    #[inline(always)]
    fn decode_nvfp4<S: Simd>(&self, simd: S, row: usize, start: usize, out: &mut [f32]) {
        let codes = &self.data[(row * self.cols + start) / 2..][..out.len() / 2];
        let scales = &self.scales[(row * self.cols + start) / NVFP4_GROUP..];
        let (groups, _) = out.as_chunks_mut::<NVFP4_GROUP>();
        let (bytes, _) = codes.as_chunks::<{ NVFP4_GROUP / 2 }>();
        let shifts: [u32; NVFP4_GROUP] = std::array::from_fn(|i| i as u32 % 8 * 4);
        for ((out, bytes), scale) in groups.iter_mut().zip(bytes).zip(scales) {
            let scale = simd.splat_f32s(fp8_to_f32(*scale));
            // Eight codes a word, lowest first.
            let word = u64::from_le_bytes(*bytes);
            let mut words = [word as u32; NVFP4_GROUP];
            words[8..].fill((word >> 32) as u32);
            let codes = S::as_simd_u32s(&words).0.iter().zip(S::as_simd_u32s(&shifts).0);
            for (out, (words, shifts)) in S::as_mut_simd_f32s(out).0.iter_mut().zip(codes) {
                let codes = simd.wrapping_dyn_shr_u32s(*words, *shifts);
                *out = simd.mul_f32s(e2m1_to_f32(simd, codes), scale);
            }
        }
    }
}

/// Codes in the low four bits. Exponent and mantissa move to their places and the bias is added; 0 and 0.5, which have
/// no exponent, are chosen by their one bit.
#[inline(always)]
fn e2m1_to_f32<S: Simd>(simd: S, codes: S::u32s) -> S::f32s {
    let bits = |mask| simd.and_u32s(codes, simd.splat_u32s(mask));
    let moved = |bits, by| simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(by));
    let normal = simd.add_u32s(moved(bits(7), 22), simd.splat_u32s(126 << 23));
    let odd = simd.sub_u32s(simd.splat_u32s(0), bits(1));
    let small = simd.and_u32s(odd, simd.splat_u32s(0.5f32.to_bits()));
    let is_small = simd.less_than_u32s(bits(7), simd.splat_u32s(2));
    let magnitude = simd.select_u32s(is_small, small, normal);
    simd.transmute_f32s_u32s(simd.or_u32s(magnitude, moved(bits(8), 28)))
}

/// Exponent and mantissa move to their places in an f32, and a power of two makes up for the bias; unlike a table or
/// a conversion call it vectorises everywhere, and subnormals come out right. Weights are finite.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

/// As [`f16_to_f32`].
#[inline(always)]
fn fp8_to_f32(byte: u8) -> f32 {
    let bits = u32::from(byte);
    let magnitude = f32::from_bits((bits & 0x7f) << 20) * f32::from_bits((254 - 7) << 23);
    f32::from_bits(magnitude.to_bits() | (bits & 0x80) << 24)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

    #[test]
    fn small_formats_decode_as_their_definitions_do() {
        for code in 0..16u8 {
            let simd = pulp::Scalar::new();
            assert_eq!(e2m1_to_f32(simd, code.into()), quant::e2m1_to_f32(code), "{code}");
        }
        for byte in (0..=255u8).filter(|byte| byte & 0x7f != 0x7f) {
            assert_eq!(fp8_to_f32(byte), quant::e4m3_to_f32(byte), "{byte}");
        }
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00) {
            assert_eq!(f16_to_f32(bits), half::f16::from_bits(bits).to_f32(), "{bits}");
        }
    }
}
