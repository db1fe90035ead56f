//! QP numbers that look random and still name shard, slot and generation.
//!
//! A QPN is a keyed permutation of `(shard 5 bits, slot 15 bits, generation 4 bits)`: a peer or a
//! neighbour tenant cannot guess the numbers of others, a reused slot gets a new number, and no
//! table is needed to find the QP of a packet.

use crate::secret::{Purpose, Secret, low32};
use roce_wire::Qpn;

/// Slots that a QPN can name: the most QPs of one shard.
pub const MAX_QPS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 15;
const GENERATION_BITS: u32 = 4;
const SHARD_BITS: u32 = 2 * HALF_BITS - SLOT_BITS - GENERATION_BITS;
/// Most shards of one device.
pub const MAX_SHARDS: u8 = 1 << SHARD_BITS;

const HALF_BITS: u32 = 12;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;
const ROUNDS: usize = 6;

/// What a QPN names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpnParts {
    /// Shard that owns the QP.
    pub shard: u8,
    /// Slot in that shard's table.
    pub slot: u32,
    /// How often the slot was reused, modulo 16.
    pub generation: u32,
}

/// The permutation, fixed by a secret at start.
#[derive(Clone, Copy, Debug)]
pub struct QpnCodec {
    keys: [u32; ROUNDS],
}

impl QpnCodec {
    /// Derives the permutation from a secret. All shards of a device share it.
    pub fn new(secret: Secret) -> Self {
        let mut nth = 0;
        let keys = [(); ROUNDS].map(|()| {
            nth += 1;
            low32(secret.draw(Purpose::QpNumbers, nth))
        });
        Self { keys }
    }

    /// The QPN of these parts, or `None` when it would be one of the reserved numbers
    /// (0, 1 and 0xFFFFFF); the caller then uses another generation.
    pub fn encode(&self, parts: QpnParts) -> Option<Qpn> {
        let plain = u32::from(parts.shard & (MAX_SHARDS - 1)) << (SLOT_BITS + GENERATION_BITS)
            | (parts.generation & ((1 << GENERATION_BITS) - 1)) << SLOT_BITS
            | (parts.slot & ((1 << SLOT_BITS) - 1));
        let (mut left, mut right) = (plain >> HALF_BITS, plain & HALF_MASK);
        for key in self.keys {
            (left, right) = (right, left ^ round(right, key));
        }
        let number = left << HALF_BITS | right;
        (number > 1 && number != 0x00ff_ffff).then(|| Qpn::new(number))
    }

    /// What a QPN from the wire would name. The caller compares the whole QPN with that of the QP
    /// it finds.
    #[inline]
    pub fn decode(&self, qpn: Qpn) -> QpnParts {
        let number = qpn.value();
        let (mut left, mut right) = (number >> HALF_BITS, number & HALF_MASK);
        for key in self.keys.iter().rev() {
            (left, right) = (right ^ round(left, *key), left);
        }
        let plain = left << HALF_BITS | right;
        #[expect(clippy::cast_possible_truncation, reason = "five bits are left")]
        QpnParts {
            shard: (plain >> (SLOT_BITS + GENERATION_BITS)) as u8,
            slot: plain & ((1 << SLOT_BITS) - 1),
            generation: plain >> SLOT_BITS & ((1 << GENERATION_BITS) - 1),
        }
    }
}

#[inline]
fn round(half: u32, key: u32) -> u32 {
    let x = (half ^ key).wrapping_mul(0x9e37_79b1);
    ((x >> 15) ^ x.wrapping_mul(0x85eb_ca6b) >> 20 ^ key >> 20) & HALF_MASK
}

#[cfg(test)]
mod tests {
    use super::{QpnCodec, QpnParts};
    use crate::secret::Secret;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decode_undoes_encode(
            a: u64, b: u64, shard in 0u8..32, slot in 0u32..1 << 15, generation in 0u32..16,
        ) {
            let codec = QpnCodec::new(Secret::new([a, b]));
            let parts = QpnParts { shard, slot, generation };
            if let Some(qpn) = codec.encode(parts) {
                prop_assert_eq!(codec.decode(qpn), parts);
            }
        }
    }

    #[test]
    fn neighbouring_slots_get_unrelated_numbers() {
        let codec = QpnCodec::new(Secret::new([3, 4]));
        let number = |slot| {
            codec.encode(QpnParts { shard: 0, slot, generation: 0 }).map_or(0, |qpn| qpn.value())
        };
        let mut steps: Vec<u32> =
            (0..64).map(|slot| number(slot + 1).wrapping_sub(number(slot)) & 0x00ff_ffff).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 60, "the differences repeat: {steps:?}");
    }
}
