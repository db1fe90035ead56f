//! Segmentation: from (WQE, PSN) to one packet.
//!
//! Nothing is stored per packet: sending again means computing again.

use super::super::plan::{Segment, Source};
use super::sq::Wr;
use crate::config::EngineConfig;
use crate::transport::TransportRules;
use rnic_abi::verbs::{SendFlags, WrOpcode};
use roce_wire::{Opcode, Position, Psn, Trailer};

/// Far below the half of all PSNs that may be in flight at most.
const MAX_WINDOW: u32 = 1 << 20;

/// How the messages of a queue pair are cut into packets: known with its path MTU, and asked for
/// with every packet.
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

impl Segmentation {
    /// Of a queue pair that has no path, and sends nothing.
    pub(crate) fn none(rules: &'static TransportRules) -> Self {
        Self { rules, mtu: 0, window: 0, ack_interval: 0 }
    }

    pub(crate) fn new(rules: &'static TransportRules, mtu: u32, config: &EngineConfig) -> Self {
        let window = window(rules, mtu, config);
        // Rule: UcAsksForNoAck
        let ack_interval = if rules.is_reliable { config.profile.ack_interval(window) } else { 0 };
        Self { rules, mtu, window, ack_interval }
    }

    /// Packets that may be unacknowledged after a timeout: enough to hold one that asks for an ACK,
    /// which opens the window again.
    #[inline]
    pub(crate) fn narrow_window(&self) -> u32 {
        2 * self.ack_interval
    }

    /// Packets of a READ that one request asks for, at most: a READ beyond half the window is asked
    /// for in pieces, so that its response cannot overrun the requester. To the responder each
    /// piece is a READ of its own.
    #[inline]
    pub(crate) fn piece(&self) -> Piece {
        Piece { packets: (self.window / 2).max(1) }
    }
}

/// A piece of a READ, whose packets are a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    packets: u32,
}

impl Piece {
    /// Where the `k`-th packet of a READ is in its piece.
    #[inline]
    pub(crate) fn place(self, k: u32) -> u32 {
        k & (self.packets - 1)
    }

    /// How many packets of its piece there are from the `k`-th packet of a READ on.
    #[inline]
    pub(crate) fn left(self, k: u32) -> u32 {
        self.packets - self.place(k)
    }
}

/// Packets that may be unacknowledged: a power of two.
fn window(rules: &TransportRules, mtu: u32, config: &EngineConfig) -> u32 {
    // No acknowledgement would ever open it again: only the budget of a visit limits those.
    // Rule: UcWaitsForNothing
    if !rules.is_reliable {
        return MAX_WINDOW;
    }
    let packets = (config.window_bytes / mtu.max(1)).clamp(2, MAX_WINDOW);
    1 << packets.ilog2()
}

/// The RC opcodes of the packets of a SEND or WRITE, by [`place`].
const fn opcodes(work: WrOpcode) -> [Opcode; 4] {
    let mut opcodes = [Opcode::RcSendMiddle; 4];
    let mut place = 0;
    while place < opcodes.len() {
        let position = Position::new(place & 1 != 0, place & 2 != 0);
        opcodes[place] = match work {
            WrOpcode::Write => Opcode::rc_write(position, false),
            WrOpcode::WriteImm => Opcode::rc_write(position, true),
            WrOpcode::SendImm => Opcode::rc_send(position, Trailer::Imm),
            WrOpcode::SendInv => Opcode::rc_send(position, Trailer::Invalidate),
            _ => Opcode::rc_send(position, Trailer::None),
        };
        place += 1;
    }
    opcodes
}

#[inline]
fn place(starts: bool, ends: bool) -> usize {
    usize::from(starts) | usize::from(ends) << 1
}

/// By `ibv_wr_opcode`: a load for each packet, without a branch.
static OPCODES: [[Opcode; 4]; 16] = {
    use WrOpcode::{Send, SendImm, SendInv, Write, WriteImm};
    let mut all = [opcodes(Send); 16];
    all[Write as usize] = opcodes(Write);
    all[WriteImm as usize] = opcodes(WriteImm);
    all[SendImm as usize] = opcodes(SendImm);
    all[SendInv as usize] = opcodes(SendInv);
    all
};

/// The request of a READ or atomic with this PSN. For a READ that was partly answered it asks for
/// the rest (of its piece).
pub(crate) fn request(wr: &Wr, index: u32, psn: Psn, how: &Segmentation) -> Segment {
    let k = wr.packet_of(psn);
    let source = Source::Request { index, offset: k * how.mtu };
    let opcode = match wr.control.opcode {
        WrOpcode::CmpSwap => Opcode::RcCmpSwap,
        WrOpcode::FetchAdd => Opcode::RcFetchAdd,
        WrOpcode::Flush => Opcode::RcFlush,
        WrOpcode::AtomicWrite => Opcode::RcAtomicWrite,
        _ => Opcode::RcReadRequest,
    };
    let span = how.piece().left(k).min(wr.packets - k);
    let len = if wr.control.opcode == WrOpcode::AtomicWrite { wr.length } else { 0 };
    Segment { span, ..Segment::new(source, how.rules.form(opcode), psn, len) }
}

/// The packet of a SEND or WRITE with this PSN.
#[inline(always)]
pub(crate) fn segment(wr: &Wr, index: u32, psn: Psn, how: &Segmentation) -> Segment {
    let mtu = how.mtu;
    let k = wr.packet_of(psn);
    let offset = k * mtu;
    let source = Source::Request { index, offset };
    let ends = k + 1 == wr.packets;
    // Rule: Segmentation
    let opcode = OPCODES[wr.control.opcode as usize][place(k == 0, ends)];
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
