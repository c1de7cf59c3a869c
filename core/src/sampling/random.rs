//! The random numbers of sampling.

/// SplitMix64 (Steele, Lea, Flood 2014): number `i` is a hash of `seed + i * gamma`, so a sequence
/// can be taken up again at any place from its seed and a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The sequence of a state that was asked for before.
    pub(super) fn at(state: u64) -> Self {
        Self { state }
    }

    /// Where the sequence is.
    pub(super) fn state(&self) -> u64 {
        self.state
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The next number of 0..1, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_sequence_is_that_of_the_published_algorithm() {
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn units_are_below_one_and_centred() {
        let mut random = Random::new(7);
        let mean = (0..10_000)
            .map(|_| random.unit())
            .inspect(|unit| assert!((0.0..1.0).contains(unit)))
            .sum::<f64>();
        assert!((mean / 10_000.0 - 0.5).abs() < 0.01);
    }
}
