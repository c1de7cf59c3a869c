//! Vectorisable pieces. Each is inlined into a function that `pulp` compiles once an instruction set.

use pulp::Simd;

/// `a * b + c`, fused where the instruction set has it.
#[inline(always)]
pub(super) fn fma<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
    simd.mul_add_e_f32s(a, b, c)
}

/// Inner product of slices of one length.
#[inline(always)]
pub(super) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_tail), (b, b_tail)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let mut sums = [simd.splat_f32s(0.0); 4];
    let (a_blocks, a_rest) = a.as_chunks::<4>();
    let (b_blocks, b_rest) = b.as_chunks::<4>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..4 {
            sums[i] = fma(simd, a[i], b[i], sums[i]);
        }
    }
    for (a, b) in a_rest.iter().zip(b_rest) {
        sums[0] = fma(simd, *a, *b, sums[0]);
    }
    let [s0, s1, s2, s3] = sums;
    let sum = simd.add_f32s(simd.add_f32s(s0, s1), simd.add_f32s(s2, s3));
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    simd.reduce_sum_f32s(sum) + tail
}

/// `out += sum of factors * xs`, all of one length.
#[inline(always)]
pub(super) fn add_scaled<S: Simd, const N: usize>(
    simd: S,
    out: &mut [f32],
    factors: [f32; N],
    xs: [&[f32]; N],
) {
    let (head, tail) = S::as_mut_simd_f32s(out);
    let splats = factors.map(|f| simd.splat_f32s(f));
    let heads = xs.map(|x| &S::as_simd_f32s(x).0[..head.len()]);
    for (i, out) in head.iter_mut().enumerate() {
        for n in 0..N {
            *out = fma(simd, splats[n], heads[n][i], *out);
        }
    }
    for n in 0..N {
        for (out, x) in tail.iter_mut().zip(S::as_simd_f32s(xs[n]).1) {
            *out += factors[n] * x;
        }
    }
}

/// Inner products of one slice with several of its length.
#[inline(always)]
pub(super) fn dots<S: Simd, const N: usize>(simd: S, a: &[f32], bs: [&[f32]; N]) -> [f32; N] {
    let (head, tail) = S::as_simd_f32s(a);
    let heads = bs.map(|b| &S::as_simd_f32s(b).0[..head.len()]);
    let mut sums = [simd.splat_f32s(0.0); N];
    for (i, a) in head.iter().enumerate() {
        for n in 0..N {
            sums[n] = fma(simd, *a, heads[n][i], sums[n]);
        }
    }
    std::array::from_fn(|n| {
        let rest = S::as_simd_f32s(bs[n]).1.iter().zip(tail);
        simd.reduce_sum_f32s(sums[n]) + rest.map(|(a, b)| a * b).sum::<f32>()
    })
}

/// `exp(x)` within 2 units in the last place for `x` in -87 to 88, and the value at the nearer end outside.
///
/// Range reduction by `ln 2` in two parts, then the polynomial of Cephes' `expf`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding this rounds to a whole number and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let mut poly = 1.987_569_1e-4;
    for term in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        poly = poly * r + term;
    }
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()) << 23;
    (poly * r * r + r + 1.0) * f32::from_bits(power.wrapping_add(1f32.to_bits()))
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[cfg(test)]
mod tests {
    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let want = f64::from(x).exp();
            let unit = f64::from(f32::EPSILON) * 2f64.powi(want.log2().floor() as i32);
            assert!((f64::from(super::exp(x)) - want).abs() <= 2.0 * unit, "exp({x})");
        }
    }

    #[test]
    fn exp_keeps_nan() {
        assert!(super::exp(f32::NAN).is_nan());
    }
}
