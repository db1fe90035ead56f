//! Values that are likely to find errors.

use fastrand::Rng;

/// A word: random, small, all ones, one bit, near a 32-bit limit.
pub(crate) fn word(random: &mut Rng) -> u64 {
    let x = random.u64(..);
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

/// Up to `most` bytes, and one at least.
pub(crate) fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.usize(1..=most)];
    random.fill(&mut bytes);
    bytes
}

/// One of these.
pub(crate) fn one_of<T: Copy, const N: usize>(random: &mut Rng, all: [T; N]) -> T {
    all[random.usize(..N)]
}
