//! By reference: payload that stays in the sender's memory until it is placed.
//!
//! A train that never leaves this engine's memory ([`TxSlot::is_internal`](crate::ports::TxSlot))
//! has no ICRC, so its ICRC field is free to tell whether the payload is there, or only a note of
//! where it is. Placement then copies once, from memory to memory, instead of twice. Notes are
//! written and read by the same engine and never leave it: a train that others see carries its
//! payload.

use crate::ports::{MemRange, Range, SpaceId};
use roce_wire::datagram::ICRC_LEN;

/// Payload on its way to application memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Payload {
    /// The memory of its sender, or one of those below.
    pub(crate) source: SpaceId,
    /// Address in that memory, or offset in the arena.
    at: u64,
    len: u32,
}

/// In place of a sender's memory: the receive arena. No memory has this number.
pub(crate) const ARENA: SpaceId = SpaceId(u64::MAX);
/// In place of a sender's memory: what the engine itself puts in front of a payload. No memory has
/// this number.
pub(crate) const AREAS: SpaceId = SpaceId(u64::MAX - 1);

impl Payload {
    #[inline]
    pub(crate) fn arrived(range: Range) -> Self {
        Self { source: ARENA, at: range.offset.into(), len: range.len }
    }

    fn referred(space: SpaceId, from: MemRange) -> Self {
        Self { source: space, at: from.addr, len: from.len }
    }

    /// Bytes of the engine's own.
    pub(crate) fn own(range: Range) -> Self {
        Self { source: AREAS, ..Self::arrived(range) }
    }

    /// The sender whose memory it is still in.
    pub(crate) fn lender(&self) -> Option<SpaceId> {
        (self.source != ARENA).then_some(self.source)
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Where it is in the sender's memory.
    #[inline]
    pub(crate) fn in_memory(&self) -> MemRange {
        MemRange { addr: self.at, len: self.len }
    }

    /// Where it is in the receive arena, or among the engine's own bytes.
    #[inline]
    pub(crate) fn in_arena(&self) -> Range {
        #[expect(clippy::cast_possible_truncation, reason = "it was made from a `Range`")]
        Range { offset: self.at as u32, len: self.len }
    }

    /// Splits off the first `len` bytes, at most all of them.
    #[inline]
    pub(crate) fn take(&mut self, len: u32) -> Self {
        let len = len.min(self.len);
        let first = Self { len, ..*self };
        self.at = self.at.wrapping_add(len.into());
        self.len -= len;
        first
    }
}

/// Marks a datagram of an internal train as one that carries its payload.
pub(crate) fn mark_carried(datagram: &mut [u8]) {
    if let Some(field) = datagram.last_chunk_mut::<ICRC_LEN>() {
        *field = CARRIED;
    }
}

/// Writes a note of where the payload is instead of the payload. `rest` is the datagram from its
/// payload on. False when there is no room for the note.
pub(crate) fn refer(rest: &mut [u8], space: SpaceId, addr: u64) -> bool {
    let Some((payload, field)) = rest.split_last_chunk_mut::<ICRC_LEN>() else { return false };
    let Some(note) = payload.first_chunk_mut::<NOTE>() else { return false };
    note[..8].copy_from_slice(&addr.to_le_bytes());
    note[8..].copy_from_slice(&space.0.to_le_bytes());
    *field = REFERRED;
    true
}

/// Where the payload of an internal train's datagram is: `arrived`, the place in the receive arena
/// of `payload`, or the memory of its sender.
pub(crate) fn find(datagram: &[u8], payload: &[u8], arrived: Range) -> Payload {
    if datagram.last_chunk() != Some(&REFERRED) {
        return Payload::arrived(arrived);
    }
    let Some((addr, rest)) = payload.split_first_chunk::<8>() else {
        return Payload::arrived(arrived);
    };
    let Some(space) = rest.first_chunk::<8>() else { return Payload::arrived(arrived) };
    let range = MemRange { addr: u64::from_le_bytes(*addr), len: arrived.len };
    Payload::referred(SpaceId(u64::from_le_bytes(*space)), range)
}

/// What the ICRC field of an internal train's datagram says.
const CARRIED: [u8; ICRC_LEN] = [0; ICRC_LEN];
const REFERRED: [u8; ICRC_LEN] = [1; ICRC_LEN];
/// An address and the number of its space.
const NOTE: usize = 16;
/// Bytes of payload from which on a note is cheaper than the copy.
pub(crate) const REFER_FROM: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_again() {
        let mut datagram = [7; 12 + 64 + 4];
        let arrived = Range { offset: 100, len: 64 };
        mark_carried(&mut datagram);
        assert_eq!(find(&datagram, &datagram[12..76], arrived), Payload::arrived(arrived));
        assert!(refer(&mut datagram[12..], SpaceId(9), 0xdead_beef_0000));
        let referred = Payload::referred(SpaceId(9), MemRange { addr: 0xdead_beef_0000, len: 64 });
        assert_eq!(find(&datagram, &datagram[12..76], arrived), referred);
        assert!(!refer(&mut datagram[12..24], SpaceId(9), 1));
    }

    #[test]
    fn payload_is_taken_from_the_front() {
        let mut payload = Payload::referred(SpaceId(1), MemRange { addr: 1000, len: 10 });
        let first = payload.take(4);
        assert_eq!(first, Payload::referred(SpaceId(1), MemRange { addr: 1000, len: 4 }));
        assert_eq!(payload, Payload::referred(SpaceId(1), MemRange { addr: 1004, len: 6 }));
        let mut payload = Payload::arrived(Range { offset: 8, len: 10 });
        assert_eq!(payload.take(20), Payload::arrived(Range { offset: 8, len: 10 }));
        assert_eq!(payload.len(), 0);
    }
}
