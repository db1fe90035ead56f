//! Reproducible random numbers, often extreme values.

use fastrand::Rng;

pub(crate) struct Random(Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.0.u64(..n) == 0
    }

    /// A word that is likely to find errors: random, small, all ones, one bit, near a 32-bit limit.
    pub(crate) fn word(&mut self) -> u64 {
        let x = self.next();
        match x % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => x >> 56,
            3 => 1 << (x >> 58),
            4 => (1 << 32) - 1 + (x >> 60),
            5 => x >> 32,
            _ => x,
        }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        bytes
    }
}
