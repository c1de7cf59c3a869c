//! Seeded operand data: the same on every back end, never zeros.

use crate::sampling::Random;

/// How an input is filled.
#[derive(Clone, Copy, Debug)]
pub enum Fill {
    /// Normally distributed with this standard deviation.
    Normal(f32),
    /// Uniform in `low..high`.
    Uniform(f32, f32),
    /// One plus a normal deviate of this size: norm gains, `D`.
    NearOne(f32),
    /// The same value everywhere.
    Constant(f32),
}

/// Random numbers seeded from a name, so that every operand has its own stream.
pub struct Stream(Random);

impl Stream {
    /// A stream for an operand of a case.
    pub fn new(case: &str, operand: &str) -> Self {
        // FNV-1a over both names.
        let bytes = case.bytes().chain([0]).chain(operand.bytes());
        let seed = bytes
            .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self(Random::new(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.bits()
    }

    /// Uniform in `0..1`.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in `0..bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(bound) * (self.next_u64() >> 32)) >> 32) as u32
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.uniform()).cos()
    }

    /// `count` values.
    pub fn values(&mut self, fill: Fill, count: usize) -> Vec<f32> {
        let draw = |_| match fill {
            Fill::Normal(deviation) => deviation * self.normal(),
            Fill::Uniform(low, high) => low + (high - low) * self.uniform(),
            Fill::NearOne(deviation) => 1.0 + deviation * self.normal(),
            Fill::Constant(value) => value,
        };
        (0..count).map(draw).collect()
    }
}
