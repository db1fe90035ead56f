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
    Reply { nth: usize, k: u32 },
    /// The responder's acknowledgement.
    Ack,
}

/// One packet to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub(crate) source: Source,
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
}

impl Budget {
    /// Takes one packet out of the budget; false when it is used up.
    #[inline]
    pub(crate) fn take(&mut self, segment: &Segment) -> bool {
        if self.bytes == 0 || self.segments == 0 {
            return false;
        }
        self.bytes = self.bytes.saturating_sub(segment.datagram_len);
        self.segments -= 1;
        true
    }
}

/// The longest train from segment `first` on: its end, and the lengths of its datagrams.
#[inline]
pub(crate) fn train_from(plan: &[Segment], first: usize, caps: &WireCaps) -> (usize, u32, u32) {
    let segment_len = plan.get(first).map_or(0, |segment| segment.datagram_len);
    let max_segments = (caps.max_segments as usize).max(1);
    let mut end = first + 1;
    let mut last_len = segment_len;
    let mut bytes = segment_len;
    while let Some(next) = plan.get(end) {
        let len = next.datagram_len;
        bytes += len;
        if len > segment_len || end - first == max_segments || bytes > caps.max_train {
            break;
        }
        last_len = len;
        end += 1;
        if len < segment_len {
            break;
        }
    }
    (end, segment_len, last_len)
}
