//! A plan: the packets that a visit of egress sends, and how they are packed into trains.

use crate::ports::WireCaps;
use roce_wire::datagram::{ICRC_LEN, pad_for};
use roce_wire::{Opcode, Psn};

/// Where a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// A send WQE, from `offset` bytes of its message on.
    Request { index: u32, offset: u32 },
    /// The `k`-th packet of the `nth` queued reply.
    QueuedReply { nth: usize, k: u32 },
    /// The responder's acknowledgement.
    Ack,
}

impl Source {
    /// Index of the send WQE that it is a part of.
    pub(crate) const fn message(self) -> Option<u32> {
        match self {
            Self::Request { index, .. } => Some(index),
            Self::QueuedReply { .. } | Self::Ack => None,
        }
    }
}

/// The address that a packet goes to. Its queue pair [resolves](super::Qp::path_to) it when the
/// train is reserved, so that no packet carries a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AddressId(u32);

impl AddressId {
    /// The peer of a connection.
    pub(crate) const PEER: Self = Self(0);

    /// That of an address handle.
    pub(crate) const fn of(ah: u32) -> Self {
        Self(ah)
    }

    /// The address handle, where there is no peer.
    #[inline]
    pub(crate) const fn handle(self) -> u32 {
        self.0
    }
}

/// One packet to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub(crate) source: Source,
    pub(crate) address: AddressId,
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) solicited: bool,
    /// Payload bytes.
    pub(crate) len: u32,
    /// PSNs it uses: for a READ request as many as its response has packets.
    pub(crate) span: u32,
    /// Bytes of headers before the payload.
    pub(crate) header_len: u32,
    /// Bytes of the datagram, BTH to ICRC.
    pub(crate) datagram_len: u32,
}

impl Segment {
    #[inline]
    pub(crate) fn new(source: Source, opcode: Opcode, psn: Psn, len: u32) -> Self {
        let header_len = u32::from(opcode.info().header_len);
        let pad = u32::from(pad_for(len as usize));
        Self {
            source,
            address: AddressId::PEER,
            opcode,
            psn,
            ack_req: false,
            solicited: false,
            len,
            span: 1,
            header_len,
            datagram_len: header_len + len + pad + ICRC_LEN as u32,
        }
    }

    pub(crate) fn is_request(&self) -> bool {
        matches!(self.source, Source::Request { .. })
    }

    #[inline]
    pub(crate) fn pad(&self) -> u8 {
        pad_for(self.len as usize)
    }
}

/// Most bytes and packets of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) bytes: u32,
    pub(crate) segments: usize,
    /// The first packet that it had no room for.
    pub(crate) left_out: Option<Segment>,
}

impl Budget {
    pub(crate) fn new(bytes: u32, segments: usize) -> Self {
        Self { bytes, segments, left_out: None }
    }

    /// Takes one packet out of the budget; false when it is used up.
    #[inline]
    pub(crate) fn take(&mut self, segment: &Segment) -> bool {
        if self.bytes == 0 || self.segments == 0 {
            self.left_out = Some(*segment);
            return false;
        }
        self.bytes = self.bytes.saturating_sub(segment.datagram_len);
        self.segments -= 1;
        true
    }

    /// Takes work out of the budget of which nothing leaves, and which takes as long as a packet
    /// all the same; false when it is used up.
    pub(crate) fn take_local(&mut self) -> bool {
        let has_room = self.segments > 0;
        self.segments = self.segments.saturating_sub(1);
        has_room
    }
}

/// The longest train from `plan[first]`, which is `head`, on: its end, and the length of its last
/// datagram. All are for one address, and all but the last are as long as the head.
#[inline]
pub(crate) fn train_from(
    plan: &[Segment],
    first: usize,
    head: &Segment,
    caps: &WireCaps,
) -> (usize, u32) {
    let (segment_len, address) = (head.datagram_len, head.address);
    let max_segments = (caps.max_segments as usize).max(1);
    let mut end = first + 1;
    let mut last_len = segment_len;
    let mut bytes = segment_len;
    while let Some(next) = plan.get(end) {
        let len = next.datagram_len;
        bytes += len;
        let fits = len <= segment_len && end - first < max_segments && bytes <= caps.max_train;
        if !fits || next.address != address {
            break;
        }
        last_len = len;
        end += 1;
        if len < segment_len {
            break;
        }
    }
    (end, last_len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::TxIpId;

    const CAPS: WireCaps = WireCaps {
        max_datagram: 4200,
        max_segments: 8,
        max_train: 64 << 10,
        tx_ip_id: TxIpId::Ours,
    };

    fn packet(address: u32, len: u32) -> Segment {
        let source = Source::Request { index: 0, offset: 0 };
        let segment = Segment::new(source, Opcode::RcWriteMiddle, Psn::ZERO, len);
        Segment { address: AddressId(address), ..segment }
    }

    fn ends(plan: &[Segment]) -> Vec<usize> {
        let mut ends = vec![0];
        while let Some(head) = plan.get(ends[ends.len() - 1]) {
            ends.push(train_from(plan, ends[ends.len() - 1], head, &CAPS).0);
        }
        ends
    }

    #[test]
    fn a_train_ends_where_the_address_changes() {
        let plan = [packet(0, 1024), packet(0, 1024), packet(7, 1024), packet(7, 8), packet(0, 8)];
        assert_eq!(ends(&plan), [0, 2, 4, 5]);
    }

    #[test]
    fn a_train_ends_behind_a_shorter_datagram_and_before_a_longer_one() {
        let plan = [packet(0, 1024), packet(0, 8), packet(0, 8), packet(0, 1024)];
        assert_eq!(ends(&plan), [0, 2, 3, 4]);
    }

    #[test]
    fn a_train_has_no_more_datagrams_than_the_wire_takes() {
        assert_eq!(ends(&[packet(0, 1024); 9]), [0, 8, 9]);
    }
}
