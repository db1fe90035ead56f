//! Segmentation: from (WQE, PSN) to one packet, and from packets to trains: pure functions.
//!
//! Nothing is stored per packet: sending again means computing again.

use super::sq::Wr;
use crate::ports::WireCaps;
use rnic_abi::verbs::{SendFlags, WrOpcode};
use roce_wire::datagram::{ICRC_LEN, pad_for};
use roce_wire::{Opcode, Position, Psn, Trailer};

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

/// How far a queue pair may run ahead of its peer's answers, in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Packets that may be unacknowledged: a power of two.
    pub(crate) window: u32,
    /// Packets of a long message after which an ACK is asked for: a power of two.
    pub(crate) ack_interval: u32,
}

/// Packets of a READ that one request asks for, at most: a READ beyond half the window is asked for
/// in pieces, so that its response cannot overrun the requester. To the responder each piece is a
/// READ of its own.
pub(crate) fn read_piece(window: u32) -> u32 {
    (window / 2).max(1)
}

/// The packet of `wr` with this PSN. For a READ that was partly answered it asks for the rest (of
/// its piece).
#[inline]
pub(crate) fn segment(wr: &Wr, index: u32, psn: Psn, mtu: u32, pace: Pace) -> Segment {
    let k = wr.packet_of(psn);
    let offset = k * mtu;
    let source = Source::Request { index, offset };
    if wr.is_read_or_atomic() {
        let opcode = match wr.control.opcode {
            WrOpcode::CmpSwap => Opcode::RcCmpSwap,
            WrOpcode::FetchAdd => Opcode::RcFetchAdd,
            _ => Opcode::RcReadRequest,
        };
        let piece = read_piece(pace.window);
        let span = (piece - k % piece).min(wr.packets - k);
        return Segment { span, ..Segment::new(source, opcode, psn, 0) };
    }
    let ends = k + 1 == wr.packets;
    // Rule: Segmentation
    let position = Position::new(k == 0, ends);
    let opcode = match wr.control.opcode {
        WrOpcode::Write => Opcode::rc_write(position, false),
        WrOpcode::WriteImm => Opcode::rc_write(position, true),
        WrOpcode::SendImm => Opcode::rc_send(position, Trailer::Imm),
        _ => Opcode::rc_send(position, Trailer::None),
    };
    let len = (wr.length - offset).min(mtu);
    // Solicited: the end of a message that consumes a receive WQE.
    let consumes = wr.control.opcode != WrOpcode::Write;
    // Rule: SolicitedAtEnd
    let solicited = wr.control.flags.contains(SendFlags::SOLICITED) && ends && consumes;
    // The last packet of each message asks for an ACK, long messages ask on the way.
    let on_the_way = psn.value() & (pace.ack_interval - 1) == 0;
    // Rule: AckReqOnTheWay, AckReqAtEnd
    let ack_req = ends || on_the_way;
    Segment { ack_req, solicited, ..Segment::new(source, opcode, psn, len) }
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
