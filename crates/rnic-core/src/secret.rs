//! Numbers that cannot be predicted, from few random ones.

use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::Hasher;

/// 128 random bits. Any number of what is drawn from them tells nothing of the rest:
/// SipHash is a pseudorandom function.
#[derive(Clone, Copy)]
pub struct Secret([u64; 2]);

/// What numbers are drawn for: each purpose has numbers of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    QpNumbers,
    MemoryKeys,
    Connections,
    SrqNumbers,
}

impl Secret {
    /// From random words that are used for nothing else.
    pub fn new(random: [u64; 2]) -> Self {
        Self(random)
    }

    /// The `nth` number for a purpose.
    pub(crate) fn draw(self, purpose: Purpose, nth: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        hasher.write_u8(purpose as u8);
        hasher.write_u64(nth);
        hasher.finish()
    }
}

/// It is not shown.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
pub(crate) fn low32(x: u64) -> u32 {
    x as u32
}

#[cfg(test)]
mod tests {
    use super::{Purpose, Secret};
    use std::collections::HashSet;

    /// Undoes the finaliser of splitmix64, whose output is a counter in disguise.
    fn unmix(mut x: u64) -> u64 {
        x ^= x >> 31 ^ x >> 62;
        x = x.wrapping_mul(0x3196_42b2_d24d_8ec3);
        x ^= x >> 27 ^ x >> 54;
        x = x.wrapping_mul(0x96de_1b17_3f11_9089);
        x ^ x >> 30 ^ x >> 60
    }

    fn mix(mut x: u64) -> u64 {
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Stronger than a program: it sees whole numbers, and of a key only half of one is seen.
    #[test]
    fn the_numbers_known_do_not_tell_the_next() {
        assert_eq!(unmix(mix(0x0123_4567_89ab_cdef)), 0x0123_4567_89ab_cdef);
        let secret = Secret::new([1, 2]);
        let known: Vec<u64> = (1..100).map(|nth| secret.draw(Purpose::MemoryKeys, nth)).collect();
        let next = secret.draw(Purpose::MemoryKeys, 100);
        let states: Vec<u64> = known.iter().copied().map(unmix).collect();
        for pair in states.windows(2) {
            let step = pair[1].wrapping_sub(pair[0]);
            assert_ne!(mix(states[98].wrapping_add(step)), next, "a counter behind a mixer");
        }
        let first_step = known[1].wrapping_sub(known[0]);
        let constant = known.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == first_step);
        assert!(!constant, "a counter");
    }

    #[test]
    fn purposes_and_secrets_have_numbers_of_their_own() {
        let secrets = [[1, 2], [2, 1], [1, 3]].map(Secret::new);
        let purposes = [Purpose::QpNumbers, Purpose::MemoryKeys];
        let drawn: HashSet<u64> = secrets
            .iter()
            .flat_map(|secret| purposes.map(|purpose| (secret, purpose)))
            .flat_map(|(secret, purpose)| (0..100).map(move |nth| secret.draw(purpose, nth)))
            .collect();
        assert_eq!(drawn.len(), 600);
        assert_eq!(format!("{:?}", secrets[0]), "Secret");
    }
}
