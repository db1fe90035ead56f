//! The world's only source of chance.

/// A small deterministic generator (splitmix64). The same seed gives the same numbers forever.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

/// Chances are given in parts per million.
pub const MILLION: u32 = 1_000_000;

impl Rng {
    /// Starts from a seed; neighbouring seeds give unrelated numbers.
    pub fn new(seed: u64) -> Self {
        Self { state: seed ^ 0x5bf0_3635_dcf9_8ac1 }
    }

    /// A generator of its own for one purpose, so that drawing more for one purpose does not
    /// change what others draw.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self { state: self.word() }
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.word() % end }
    }

    /// A 32-bit number below `end`; 0 when `end` is 0.
    pub fn below32(&mut self, end: u32) -> u32 {
        u32::try_from(self.below(u64::from(end))).unwrap_or(0)
    }

    /// True `per_million` times in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million != 0 && self.below32(MILLION) < per_million
    }

    /// One of the items.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).unwrap_or(0)]
    }

    /// Fills with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut();
        for word in words {
            *word = self.word().to_le_bytes();
        }
        if !rest.is_empty() {
            rest.copy_from_slice(&self.word().to_le_bytes()[..rest.len()]);
        }
    }
}
