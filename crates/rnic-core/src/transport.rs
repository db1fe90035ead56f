//! What each transport service is, as rules that the engine asks for.
//!
//! What depends on the type of a queue pair is asked of its row here, so that another transport is
//! a row and the code that only it needs, not a search for places that assume RC.

use rnic_abi::verbs::{QpState, QpType, WrOpcode};
use roce_wire::{Opcode, Transport};

/// The rules of one type of queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TransportRules {
    /// The transport of its packets.
    pub(crate) transport: Transport,
    /// It has one peer, so a packet must come from that peer's address. Without one, a queue pair
    /// has a Q_Key instead.
    pub(crate) is_connected: bool,
    /// The work requests that it takes: bit n for `ibv_wr_opcode` n.
    work: u16,
    /// The responder answers: the requester repeats what is lost, and is told what is refused.
    pub(crate) is_reliable: bool,
    /// Its requests name the shared receive queue at the other end (XRC), so that one connection
    /// serves all of a domain. It has no receives of its own.
    pub(crate) names_srq: bool,
}

/// What a request is to the responder, by its PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sequence {
    /// The expected one.
    Next,
    /// Something before it is lost: it must be asked for.
    Gap,
    /// It came before.
    Duplicate,
    /// What was expected is lost for good: with this packet another message begins.
    Anew,
    /// Something before it is lost, so that the rest of its message is of no use.
    Rest,
    /// A late copy of part of a message. That message is complete or lost.
    Late,
}

const RC: TransportRules = TransportRules {
    transport: Transport::Rc,
    is_connected: true,
    work: ALL,
    is_reliable: true,
    names_srq: false,
};
const UC: TransportRules = TransportRules {
    transport: Transport::Uc,
    work: ALL & !READS & !SEND_INV,
    is_reliable: false,
    ..RC
};
const UD: TransportRules = TransportRules {
    transport: Transport::Ud,
    is_connected: false,
    work: ALL & !WRITES & !READS & !SEND_INV,
    is_reliable: false,
    names_srq: false,
};
const XRC: TransportRules = TransportRules { transport: Transport::Xrc, names_srq: true, ..RC };

/// All work requests: bit n for `ibv_wr_opcode` n.
const ALL: u16 = u16::MAX;
/// Those that take a transport with access to memory of the peer.
const WRITES: u16 = 1 << WrOpcode::Write as u16
    | 1 << WrOpcode::WriteImm as u16
    | 1 << WrOpcode::BindMw as u16
    | 1 << WrOpcode::LocalInv as u16;
/// The one that invalidates a key of the peer.
const SEND_INV: u16 = 1 << WrOpcode::SendInv as u16;
/// Those that take a response.
const READS: u16 = 1 << WrOpcode::Read as u16
    | 1 << WrOpcode::CmpSwap as u16
    | 1 << WrOpcode::FetchAdd as u16
    | 1 << WrOpcode::Flush as u16
    | 1 << WrOpcode::AtomicWrite as u16;

/// All types of queue pairs.
pub(crate) const TYPES: [QpType; 5] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

impl TransportRules {
    /// The rules of `qp_type`.
    pub(crate) const fn of(qp_type: QpType) -> &'static Self {
        match qp_type {
            QpType::Rc => &RC,
            QpType::Uc => &UC,
            QpType::Ud => &UD,
            QpType::XrcSend | QpType::XrcRecv => &XRC,
        }
    }

    /// A packet of this transport is for such a queue pair.
    #[inline]
    pub(crate) fn takes(&self, transport: Transport) -> bool {
        transport == self.transport || transport == Transport::Cnp
    }

    /// The send queue may be told to do this, as far as the transport is concerned.
    #[inline]
    pub(crate) fn allows(&self, opcode: WrOpcode) -> bool {
        // Rule: UcNoReads, UcInvalidatesNothing
        self.work >> opcode.number() & 1 != 0
    }

    /// What a request is whose PSN is `ahead` of the expected one. Where nothing is repeated there
    /// is no way back: the first packet of a message is as good as the one that was expected, and
    /// the others are of no use without it. Datagrams are not asked: each is a message of its own.
    #[inline]
    pub(crate) fn sequence(&self, ahead: i32, starts_message: bool) -> Sequence {
        if ahead == 0 {
            return Sequence::Next;
        }
        match (self.is_reliable, ahead > 0) {
            // Rule: GapDropped, DuplicateNotExecuted
            (true, true) => Sequence::Gap,
            (true, false) => Sequence::Duplicate,
            // Rule: UcBeginsAnywhere
            (false, _) if starts_message => Sequence::Anew,
            // Rule: UcLossEndsMessage, UcLateCopyHarmless
            (false, true) => Sequence::Rest,
            (false, false) => Sequence::Late,
        }
    }

    /// The state that a failed send leads to.
    pub(crate) fn state_after_send_error(&self) -> QpState {
        // Rule: SendErrorEndsQp, UcSendErrorStopsSends
        if self.is_reliable { QpState::Err } else { QpState::Sqe }
    }

    /// The form of an RC opcode on this transport. One that the transport does not have is never
    /// asked for: [`allows`](Self::allows) refuses its work request.
    #[inline]
    pub(crate) fn form(&self, rc: Opcode) -> Opcode {
        if self.transport == Transport::Rc { rc } else { self.other_form(rc) }
    }

    #[inline(never)]
    fn other_form(&self, rc: Opcode) -> Opcode {
        rc.on(self.transport).unwrap_or(rc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_requests_are_allowed_where_the_transport_has_their_packets() {
        let packets = [
            (WrOpcode::Send, Opcode::RcSendOnly),
            (WrOpcode::SendImm, Opcode::RcSendOnlyImm),
            (WrOpcode::Write, Opcode::RcWriteOnly),
            (WrOpcode::WriteImm, Opcode::RcWriteOnlyImm),
            (WrOpcode::Read, Opcode::RcReadRequest),
            (WrOpcode::CmpSwap, Opcode::RcCmpSwap),
            (WrOpcode::FetchAdd, Opcode::RcFetchAdd),
            (WrOpcode::SendInv, Opcode::RcSendOnlyInv),
            (WrOpcode::Flush, Opcode::RcFlush),
            (WrOpcode::AtomicWrite, Opcode::RcAtomicWrite),
        ];
        for qp_type in TYPES {
            let rules = TransportRules::of(qp_type);
            for (work, packet) in packets {
                let on = packet.on(rules.transport);
                assert_eq!(rules.allows(work), on.is_some(), "{work:?} on {qp_type:?}");
                if let Some(on) = on {
                    assert_eq!(rules.form(packet), on);
                    assert!(rules.takes(on.transport()));
                }
            }
        }
    }

    #[test]
    fn packets_of_another_transport_are_not_taken() {
        for qp_type in TYPES {
            let rules = TransportRules::of(qp_type);
            assert!(rules.takes(Transport::Cnp));
            for other in TYPES.map(|other| TransportRules::of(other).transport) {
                assert_eq!(rules.takes(other), other == rules.transport);
            }
        }
    }

    #[test]
    fn only_a_reliable_transport_asks_for_what_is_lost() {
        for qp_type in [QpType::Rc, QpType::XrcSend, QpType::XrcRecv] {
            let rules = TransportRules::of(qp_type);
            for starts_message in [false, true] {
                let places = [-1, 0, 1].map(|ahead| rules.sequence(ahead, starts_message));
                assert_eq!(places, [Sequence::Duplicate, Sequence::Next, Sequence::Gap]);
            }
        }
        let rules = TransportRules::of(QpType::Uc);
        let places = [-1, 0, 1].map(|ahead| rules.sequence(ahead, false));
        assert_eq!(places, [Sequence::Late, Sequence::Next, Sequence::Rest]);
        let places = [-1, 0, 1].map(|ahead| rules.sequence(ahead, true));
        assert_eq!(places, [Sequence::Anew, Sequence::Next, Sequence::Anew]);
    }

    #[test]
    fn only_datagrams_have_no_peer() {
        for qp_type in TYPES {
            assert_eq!(TransportRules::of(qp_type).is_connected, qp_type != QpType::Ud);
        }
    }
}
