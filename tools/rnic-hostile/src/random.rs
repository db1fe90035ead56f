//! Reproducible randomness (SplitMix64), with a taste for extreme values.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    /// A word as bad luck would have it: random, small, all ones, one bit, near a 32-bit edge.
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
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}
