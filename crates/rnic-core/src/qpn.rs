//! QP numbers that name their shard and slot, and otherwise look random.
//!
//! The upper 7 bits of a QPN are the number of the shard, as they are, so that a packet filter can
//! lead a datagram to its shard by one byte. The other 17 bits are a keyed permutation of
//! `(slot 14 bits, generation 3 bits)`: a peer or another tenant cannot guess the numbers of
//! others, a reused slot gets a new number, and no table is needed to find the QP of a packet.

use crate::permutation::Permutation;
use crate::secret::{Purpose, Secret};
use roce_wire::Qpn;

/// Slots that a QPN can name: the most QPs of one shard.
pub const MAX_QPS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 14;
const GENERATION_BITS: u32 = 3;
/// The shard in a QPN: its number shifted right by this.
pub const SHARD_SHIFT: u32 = SLOT_BITS + GENERATION_BITS;
const SHARD_BITS: u32 = 24 - SHARD_SHIFT;
/// The shard in the first byte of a QPN as packets have it: the byte shifted right by this.
pub const SHARD_IN_BYTE: u8 = 1;
/// Most shards of one device.
pub const MAX_SHARDS: u8 = 1 << SHARD_BITS;

const _: () = assert!(SHARD_SHIFT == 16 + SHARD_IN_BYTE as u32);

const LOW_BITS: u32 = 9;
const HIGH_BITS: u32 = SHARD_SHIFT - LOW_BITS;

/// The shard whose QP has this number.
#[inline]
pub fn shard_of(qpn: Qpn) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "seven bits are left")]
    let shard = (qpn.value() >> SHARD_SHIFT) as u8;
    shard
}

/// What a QPN names in its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpnParts {
    /// Slot in the shard's table.
    pub slot: u32,
    /// How often the slot was reused, modulo 8.
    pub generation: u32,
}

/// The permutation of one shard, fixed by a secret at start.
#[derive(Clone, Copy, Debug)]
pub struct QpnCodec {
    shard: u8,
    permutation: Permutation<HIGH_BITS, LOW_BITS>,
}

impl QpnCodec {
    /// Derives the permutation of a shard from its secret.
    pub fn new(secret: Secret, shard: u8) -> Self {
        let permutation = Permutation::new(secret, Purpose::QpNumbers);
        Self { shard: shard & (MAX_SHARDS - 1), permutation }
    }

    /// The QPN of these parts, or `None` when it would be one of the reserved numbers
    /// (0, 1 and 0xFFFFFF); the caller then uses another generation.
    pub fn encode(&self, parts: QpnParts) -> Option<Qpn> {
        let plain = (parts.generation & ((1 << GENERATION_BITS) - 1)) << SLOT_BITS
            | (parts.slot & ((1 << SLOT_BITS) - 1));
        let number = u32::from(self.shard) << SHARD_SHIFT | self.permutation.apply(plain);
        (number > 1 && number != 0x00ff_ffff).then(|| Qpn::new(number))
    }

    /// What a QPN from the wire would name in this shard. The caller compares the whole QPN with
    /// that of the QP it finds.
    #[inline]
    pub fn decode(&self, qpn: Qpn) -> QpnParts {
        let plain = self.permutation.undo(qpn.value());
        QpnParts { slot: plain & ((1 << SLOT_BITS) - 1), generation: plain >> SLOT_BITS }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_SHARDS, QpnCodec, QpnParts, shard_of};
    use crate::secret::Secret;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decode_undoes_encode(
            a: u64, b: u64, shard in 0..MAX_SHARDS, slot in 0u32..1 << 14, generation in 0u32..8,
        ) {
            let codec = QpnCodec::new(Secret::new([a, b]), shard);
            let parts = QpnParts { slot, generation };
            if let Some(qpn) = codec.encode(parts) {
                prop_assert_eq!((shard_of(qpn), codec.decode(qpn)), (shard, parts));
            }
        }
    }

    #[test]
    fn neighbouring_slots_get_unrelated_numbers() {
        let codec = QpnCodec::new(Secret::new([3, 4]), 0);
        let number =
            |slot| codec.encode(QpnParts { slot, generation: 0 }).map_or(0, |qpn| qpn.value());
        let mut steps: Vec<u32> =
            (0..64).map(|slot| number(slot + 1).wrapping_sub(number(slot)) & 0x00ff_ffff).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 60, "the differences repeat: {steps:?}");
    }
}
