//! Small number formats: E2M1, E4M3, and the NVFP4 and FP8 packings built of them.
//!
//! Layouts as NVIDIA's modelopt writes them: byte `i` of an NVFP4 row holds column `2i` in its low nibble and `2i + 1`
//! in its high nibble; each 16 columns share an E4M3 scale; `value = E2M1 * scale * matrix scale`.

use crate::weight::NVFP4_GROUP;
use std::sync::LazyLock;

/// Values of the E2M1 codes 0 to 7; bit 3 is the sign.
pub const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Largest finite E4M3 value.
pub const E4M3_MAX: f32 = 448.0;

/// Value of an E2M1 code; bits above the fourth are ignored.
pub fn e2m1_to_f32(code: u8) -> f32 {
    let value = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { value } else { -value }
}

/// Nearest E2M1 code, ties to the even code, saturating at 6.
pub fn f32_to_e2m1(value: f32) -> u8 {
    const BOUNDS: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = value.abs();
    // A tie goes up where the code above is even: after codes 1, 3 and 5.
    let above =
        |(i, bound): &(usize, &f32)| magnitude > **bound || (magnitude == **bound && i % 2 == 1);
    let code = BOUNDS.iter().enumerate().filter(above).count();
    // At most seven bounds.
    (code as u8) | if value < 0.0 { 8 } else { 0 }
}

/// Value of an E4M3 byte; `0x7f` and `0xff` are NaN.
pub fn e4m3_to_f32(byte: u8) -> f32 {
    static TABLE: LazyLock<[f32; 256]> = LazyLock::new(|| {
        // The index of a table of 256 entries fits a byte.
        std::array::from_fn(|i| decode_e4m3(i as u8))
    });
    TABLE[usize::from(byte)]
}

fn decode_e4m3(byte: u8) -> f32 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from((byte >> 3) & 15);
    let mantissa = f32::from(byte & 7);
    match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// Nearest E4M3 byte, ties to even, saturating at 448; NaN stays NaN.
pub fn f32_to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return 0x7f;
    }
    let magnitude = value.abs().min(E4M3_MAX);
    // The step between neighbours is 2^(e - 3), and 2^-9 below the smallest normal, 2^-6.
    let exponent = (magnitude.max(2f32.powi(-6)).to_bits() >> 23) as i32 - 127;
    let steps = (magnitude / 2f32.powi(exponent - 3)).round_ties_even();
    // Codes are consecutive integers across exponents, so a carry out of the mantissa is right by itself.
    let code = steps as i32 + (exponent + 6) * 8;
    sign | code as u8
}

/// An NVFP4 matrix as stored.
pub struct Nvfp4 {
    /// Two codes a byte. `[rows, cols / 2]`
    pub codes: Vec<u8>,
    /// E4M3 scales. `[rows, cols / 16]`
    pub scales: Vec<u8>,
    /// Scale of the matrix.
    pub scale: f32,
}

/// Packs a matrix whose number of columns is a multiple of 16.
pub fn to_nvfp4(values: &[f32]) -> Nvfp4 {
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = if largest == 0.0 { 1.0 } else { largest / (6.0 * E4M3_MAX) };
    let (mut codes, mut scales) = (Vec::with_capacity(values.len() / 2), Vec::new());
    for group in values.chunks(NVFP4_GROUP) {
        let block = group.iter().fold(0f32, |m, v| m.max(v.abs())) / (6.0 * scale);
        let byte =
            if block == 0.0 { 0x38 } else { f32_to_e4m3(block.clamp(2f32.powi(-9), E4M3_MAX)) };
        let divisor = e4m3_to_f32(byte) * scale;
        scales.push(byte);
        codes.extend(group.chunks(2).map(|pair| {
            let code = |v: &f32| f32_to_e2m1(v / divisor);
            code(&pair[0]) | (pair.get(1).map_or(0, code) << 4)
        }));
    }
    Nvfp4 { codes, scales, scale }
}

/// Packs a matrix to E4M3 with one scale.
pub fn to_fp8(values: &[f32]) -> (Vec<u8>, f32) {
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = if largest == 0.0 { 1.0 } else { largest / E4M3_MAX };
    (values.iter().map(|v| f32_to_e4m3(v / scale)).collect(), scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_round_trips_every_byte() {
        for byte in 0..=255u8 {
            let value = e4m3_to_f32(byte);
            if value.is_nan() {
                assert_eq!(byte & 0x7f, 0x7f);
            } else {
                assert_eq!(f32_to_e4m3(value), byte, "{value}");
            }
        }
    }

    #[test]
    fn e4m3_rounds_to_nearest_even_and_saturates() {
        let cases = [
            (448.0, 0x7e),
            (1e9, 0x7e),
            (-1e9, 0xfe),
            (1.0625, 0x38),
            (1.1875, 0x3a),
            (2f32.powi(-10), 0),
        ];
        for (value, byte) in cases {
            assert_eq!(f32_to_e4m3(value), byte, "{value}");
        }
    }

    #[test]
    fn e2m1_ties_go_to_the_even_code() {
        let cases = [
            (0.25, 0),
            (0.75, 2),
            (1.25, 2),
            (1.75, 4),
            (2.5, 4),
            (3.5, 6),
            (5.0, 6),
            (9.0, 7),
            (-3.5, 14),
        ];
        for (value, code) in cases {
            assert_eq!(f32_to_e2m1(value), code, "{value}");
        }
    }

    #[test]
    fn an_all_zero_block_stores_scale_one() {
        let mut values = [0.0; 32];
        values[20] = 3.0;
        let packed = to_nvfp4(&values);
        assert_eq!(packed.scales[0], 0x38);
        assert_eq!(packed.codes[10], 7);
    }
}
