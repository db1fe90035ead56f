//! A keyed permutation of small numbers, so that numbers of objects are found without a table and
//! cannot be guessed.

use crate::secret::{Purpose, Secret, low32};

/// Pairs of rounds.
const ROUNDS: usize = 3;

/// Permutes numbers of `HIGH + LOW` bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation<const HIGH: u32, const LOW: u32> {
    keys: [[u32; 2]; ROUNDS],
}

impl<const HIGH: u32, const LOW: u32> Permutation<HIGH, LOW> {
    const LOW_MASK: u32 = (1 << LOW) - 1;
    const HIGH_MASK: u32 = (1 << HIGH) - 1;

    /// The permutation of a secret for a purpose.
    pub(crate) fn new(secret: Secret, purpose: Purpose) -> Self {
        let mut nth = 0;
        let mut key = || {
            nth += 1;
            low32(secret.draw(purpose, nth))
        };
        Self { keys: [(); ROUNDS].map(|()| [key(), key()]) }
    }

    /// Where a number goes; bits above are ignored.
    pub(crate) fn apply(&self, plain: u32) -> u32 {
        let (mut high, mut low) = (plain >> LOW & Self::HIGH_MASK, plain & Self::LOW_MASK);
        for [first, second] in self.keys {
            high ^= round(low, first) & Self::HIGH_MASK;
            low ^= round(high, second) & Self::LOW_MASK;
        }
        high << LOW | low
    }

    /// Where it came from.
    #[inline]
    pub(crate) fn undo(&self, number: u32) -> u32 {
        let (mut high, mut low) = (number >> LOW & Self::HIGH_MASK, number & Self::LOW_MASK);
        for [first, second] in self.keys.iter().rev() {
            low ^= round(high, *second) & Self::LOW_MASK;
            high ^= round(low, *first) & Self::HIGH_MASK;
        }
        high << LOW | low
    }
}

#[inline]
fn round(part: u32, key: u32) -> u32 {
    let x = (part ^ key).wrapping_mul(0x9e37_79b1);
    (x >> 15) ^ x.wrapping_mul(0x85eb_ca6b) >> 20 ^ key >> 20
}
