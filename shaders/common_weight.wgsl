// Stored weights, unpacked. FORMAT: 0 f32, 1 f16, 2 bf16, 3 nvfp4, 4 fp8.
//
// A unit is 16 bytes of one row: 4, 8, 8, 32 or 16 elements. Narrow codes become halves by moving their bits under the
// half's exponent; the difference of the biases is a power of two, multiplied in afterwards, so every code is exact.

const F32: u32 = 0u;
const F16: u32 = 1u;
const BF16: u32 = 2u;
const NVFP4: u32 = 3u;
const FP8: u32 = 4u;

// Two E4M3 codes, in bits 0 to 7 and 16 to 23. The bias differs by 8.
fn e4m3_pair(w: u32) -> vec2<f32> {
    return unpack2x16float(((w & 0x007f007fu) << 7u) | ((w & 0x00800080u) << 8u)) * 256.0;
}

// One E2M1 code, in bits 0 to 3, times 2^-14.
fn e2m1_one(w: u32) -> f32 {
    return unpack2x16float(((w & 7u) << 9u) | ((w & 8u) << 12u)).x;
}

fn bf16_pair(w: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(w << 16u), bitcast<f32>(w & 0xffff0000u));
}

// Two 16-bit elements.
fn half_pair(w: u32) -> vec2<f32> {
    if (FORMAT == F16) {
        return unpack2x16float(w);
    }
    return bf16_pair(w);
}

// Four E4M3 codes.
fn e4m3_four(w: u32) -> vec4<f32> {
    let even = e4m3_pair(w);
    let odd = e4m3_pair(w >> 8u);
    return vec4<f32>(even.x, odd.x, even.y, odd.y);
}

// Element i of a format without blocks, whose word is given.
fn element_of(word: u32, i: u32) -> f32 {
    if (FORMAT == F32) {
        return bitcast<f32>(word);
    }
    if (FORMAT == FP8) {
        return e4m3_pair(word >> ((i & 3u) * 8u)).x;
    }
    let pair = half_pair(word);
    return select(pair.x, pair.y, (i & 1u) == 1u);
}

// Eight E2M1 codes, the low four and the high four columns, times 2^-14. Two codes are 16 bits apart, so each shift puts
// a pair under the exponents and signs of two halves.
fn e2m1_eight(w: u32) -> array<vec4<f32>, 2> {
    let a = unpack2x16float(((w << 9u) & 0x0e000e00u) | ((w << 12u) & 0x80008000u));
    let b = unpack2x16float(((w << 5u) & 0x0e000e00u) | ((w << 8u) & 0x80008000u));
    let c = unpack2x16float(((w << 1u) & 0x0e000e00u) | ((w << 4u) & 0x80008000u));
    let d = unpack2x16float(((w >> 3u) & 0x0e000e00u) | (w & 0x80008000u));
    return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
}

// Elements of a block of NVFP4 as e2m1_eight leaves them, scaled by its E4M3 byte.
fn block_scale(byte: u32) -> f32 {
    return e4m3_pair(byte).x * 16384.0;
}

// 1 / x for a power of two, exactly.
fn inverse_power(x: f32) -> f32 {
    return bitcast<f32>((254u << 23u) - bitcast<u32>(x));
}
