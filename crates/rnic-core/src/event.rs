//! What happens in the engine, defined once.
//!
//! An [`Event`] is built only when a tap listens: [`Tap::on`] takes a closure, and the unit
//! type's implementation ignores it, so a turn without a listener compiles to the same code as one
//! without events.

use crate::mr::{BindFault, KeyFault};
use crate::time::Instant;
use rnic_abi::verbs::{QpState, WcStatus};
use rnic_abi::wqe::BadWqe;
use roce_wire::{Opcode, Psn, Qpn};

/// A listener.
pub trait Tap {
    /// Something happened at `now`.
    fn on(&mut self, now: Instant, event: impl FnOnce() -> Event);
}

/// A tap that hears nothing.
impl Tap for () {
    #[inline(always)]
    fn on(&mut self, _now: Instant, _event: impl FnOnce() -> Event) {}
}

/// Everything is kept: tests and traces.
impl Tap for Vec<(Instant, Event)> {
    fn on(&mut self, now: Instant, event: impl FnOnce() -> Event) {
        self.push((now, event()));
    }
}

/// Headers of one datagram, as far as a reader of events wants them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketInfo {
    /// Opcode.
    pub opcode: Opcode,
    /// Destination QP.
    pub dest_qpn: Qpn,
    /// PSN.
    pub psn: Psn,
    /// AckReq bit.
    pub ack_req: bool,
    /// Payload bytes.
    pub payload: u32,
    /// AETH syndrome byte and MSN, when there is one.
    pub aeth: Option<(u8, u32)>,
}

/// Why a received datagram was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// Lengths, TVer, pad count or extended headers do not add up.
    Malformed,
    /// Bad ICRC.
    Icrc,
    /// No QP has this number.
    NoQp,
    /// No QP is attached to this group.
    NoMember,
    /// The opcode's transport is not that of the QP.
    Transport,
    /// The QP's state does not accept it.
    QpState,
    /// P_Key mismatch.
    PKey,
    /// It does not come from the QP's peer.
    Address,
    /// Q_Key mismatch.
    QKey,
    /// Ahead of the expected PSN while a NAK for the gap is already on its way, or where none is
    /// sent.
    OutOfSequence,
    /// A duplicate that needs no answer, or whose answer is no longer remembered.
    Duplicate,
    /// A request that would be refused with a NAK, by a transport without answers.
    Refused(NakReason),
    /// A response outside the window of unacknowledged PSNs.
    GhostResponse,
    /// Reserved AETH syndrome.
    ReservedSyndrome,
    /// Refused because an earlier packet of the burst failed.
    AfterFault,
    /// A transport without answers found no receive WQE.
    NoReceive,
    /// A datagram is longer than the receive buffer.
    TooLong,
    /// The queue to another shard is full.
    HandOver,
    /// The payload was to be copied from the memory of a sender on the same device, which took
    /// that memory away meanwhile.
    LentGone,
}

/// Why a request is refused: with a NAK, where the transport has answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakReason {
    /// PSN ahead of what is expected.
    Sequence,
    /// Opcode does not follow the previous one.
    OpcodeSequence,
    /// Operation is reserved or not enabled for this QP.
    NotAllowed,
    /// More READs and atomics than `max_dest_rd_atomic`.
    Resources,
    /// XRC: the domain has no such shared receive queue, or the message began with another one.
    NoSrq,
    /// Payload, DMA length or pad is wrong.
    Length,
    /// The message is longer than the receive buffers.
    ReceiveTooShort,
    /// Misaligned atomic.
    Alignment,
    /// Key, right or range.
    Key(KeyFault),
    /// The key that a SEND names must not be invalidated. Nothing tells the peer.
    Invalidation(KeyFault),
    /// Memory that the application unmapped.
    RemoteMemory,
    /// The responder's own receive WQE or CQ is broken.
    Local,
}

/// One thing that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A doorbell was found; so many WQEs are new.
    Doorbell {
        /// QP.
        qpn: Qpn,
        /// WQEs ready to be fetched.
        wqes: u32,
    },
    /// A send WQE was copied and accepted.
    WqeFetched {
        /// QP.
        qpn: Qpn,
        /// Index in the queue.
        index: u32,
        /// First and last PSN it will use.
        psns: (Psn, Psn),
        /// Message bytes.
        length: u32,
    },
    /// A WQE cannot be executed.
    WqeRefused {
        /// QP.
        qpn: Qpn,
        /// Why.
        reason: BadWqe,
    },
    /// A window cannot be bound as a WQE asks.
    BindRefused {
        /// QP.
        qpn: Qpn,
        /// Why.
        reason: BindFault,
    },
    /// A key cannot be invalidated as a WQE asks.
    InvalidationRefused {
        /// QP.
        qpn: Qpn,
        /// Why.
        reason: KeyFault,
    },
    /// A datagram leaves.
    Sent {
        /// Our QP.
        qpn: Qpn,
        /// Headers.
        packet: PacketInfo,
        /// Not for the first time.
        retransmit: bool,
    },
    /// A datagram arrived and was accepted for checking by its QP.
    Received {
        /// Our QP.
        qpn: Qpn,
        /// Headers.
        packet: PacketInfo,
    },
    /// A datagram was dropped.
    Dropped {
        /// Why.
        reason: DropReason,
        /// Headers, when they could be read.
        packet: Option<PacketInfo>,
    },
    /// A request was refused with a NAK.
    Nak {
        /// Our QP.
        qpn: Qpn,
        /// PSN in the NAK.
        psn: Psn,
        /// Why.
        reason: NakReason,
    },
    /// A request tells that what was expected is lost for good; with it another message begins.
    Lost {
        /// Our QP.
        qpn: Qpn,
        /// First PSN that is lost.
        psn: Psn,
    },
    /// A request found no receive WQE: RNR NAK.
    RnrNak {
        /// Our QP.
        qpn: Qpn,
        /// PSN in the NAK.
        psn: Psn,
        /// Timer code.
        timer: u8,
    },
    /// Bytes were placed into application memory.
    Placed {
        /// Our QP.
        qpn: Qpn,
        /// Bytes.
        bytes: u32,
    },
    /// Application memory could not be accessed.
    DmaFault {
        /// Our QP.
        qpn: Qpn,
        /// PSN of the packet.
        psn: Psn,
    },
    /// Requests up to and including this PSN are acknowledged.
    Acked {
        /// Our QP.
        qpn: Qpn,
        /// PSN.
        psn: Psn,
    },
    /// The requester goes back.
    Rewound {
        /// Our QP.
        qpn: Qpn,
        /// First PSN to be sent again.
        to: Psn,
        /// What made it.
        cause: RewindCause,
    },
    /// A completion was written.
    Completed {
        /// Our QP.
        qpn: Qpn,
        /// Status.
        status: WcStatus,
        /// From the receive side.
        receive: bool,
        /// WQE.
        wr_id: u64,
    },
    /// A completion found its CQ full.
    CqOverflow {
        /// CQ handle.
        cq: u32,
    },
    /// A QP changed state.
    State {
        /// QP.
        qpn: Qpn,
        /// Old.
        from: QpState,
        /// New.
        to: QpState,
    },
}

/// What makes a requester go back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RewindCause {
    /// NAK: PSN sequence error.
    SequenceNak,
    /// A response shows that an earlier READ or atomic response was lost.
    ImpliedNak,
    /// The local ACK timeout passed.
    Timeout,
    /// The RNR wait is over.
    Rnr,
}
