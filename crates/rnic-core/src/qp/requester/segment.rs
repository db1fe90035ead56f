//! Segmentation: from (WQE, PSN) to one packet.
//!
//! Nothing is stored per packet: sending again means computing again.

use super::super::plan::{Segment, Source};
use super::sq::Wr;
use crate::transport::TransportRules;
use rnic_abi::verbs::{SendFlags, WrOpcode};
use roce_wire::{Opcode, Position, Psn, Trailer};

/// How the messages of a queue pair are cut into packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segmentation {
    pub(crate) rules: &'static TransportRules,
    /// Path MTU, bytes.
    pub(crate) mtu: u32,
    /// Packets that may be unacknowledged: a power of two.
    pub(crate) window: u32,
    /// Packets of a long message after which an ACK is asked for: a power of two, or 0 where none
    /// ever is.
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
pub(crate) fn segment(wr: &Wr, index: u32, psn: Psn, how: &Segmentation) -> Segment {
    let mtu = how.mtu;
    let k = wr.packet_of(psn);
    let offset = k * mtu;
    let source = Source::Request { index, offset };
    if wr.is_read_or_atomic() {
        let opcode = match wr.control.opcode {
            WrOpcode::CmpSwap => Opcode::RcCmpSwap,
            WrOpcode::FetchAdd => Opcode::RcFetchAdd,
            WrOpcode::Flush => Opcode::RcFlush,
            WrOpcode::AtomicWrite => Opcode::RcAtomicWrite,
            _ => Opcode::RcReadRequest,
        };
        let piece = read_piece(how.window);
        let span = (piece - k % piece).min(wr.packets - k);
        let len = if wr.control.opcode == WrOpcode::AtomicWrite { wr.length } else { 0 };
        return Segment { span, ..Segment::new(source, how.rules.form(opcode), psn, len) };
    }
    let ends = k + 1 == wr.packets;
    // Rule: Segmentation
    let position = Position::new(k == 0, ends);
    let opcode = match wr.control.opcode {
        WrOpcode::Write => Opcode::rc_write(position, false),
        WrOpcode::WriteImm => Opcode::rc_write(position, true),
        WrOpcode::SendImm => Opcode::rc_send(position, Trailer::Imm),
        WrOpcode::SendInv => Opcode::rc_send(position, Trailer::Invalidate),
        _ => Opcode::rc_send(position, Trailer::None),
    };
    let len = (wr.length - offset).min(mtu);
    // Solicited: the end of a message that consumes a receive WQE.
    let consumes = wr.control.opcode != WrOpcode::Write;
    // Rule: SolicitedAtEnd
    let solicited = wr.control.flags.contains(SendFlags::SOLICITED) && ends && consumes;
    // The last packet of each message asks for an ACK, long messages ask on the way.
    let on_the_way = psn.value() & how.ack_interval.wrapping_sub(1) == 0;
    // Rule: AckReqOnTheWay, AckReqAtEnd
    let ack_req = (ends || on_the_way) && how.ack_interval > 0;
    Segment { ack_req, solicited, ..Segment::new(source, how.rules.form(opcode), psn, len) }
}
