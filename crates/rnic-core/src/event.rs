//! What happens in the engine, defined once.
//!
//! [`Event::schema`] tells names, fields and meanings of all, and [`SCHEMA`] its version. What ties
//! the events of one message together is the number of its queue pair and the index of its WQE in
//! the send queue (`message`); a responder knows the PSN, which is in the range that
//! [`Event::WqeFetched`] tells, and the QP number that the packets of the message are for.
//!
//! An [`Event`] is built only when a tap listens: [`Tap::on`] takes a closure, and the unit
//! type's implementation ignores it, so a turn without a listener compiles to the same code as one
//! without events.

#[macro_use]
pub(crate) mod schema;

use crate::mr::{BindFault, KeyFault};
use crate::time::Instant;
use rnic_abi::verbs::{QpState, WcStatus, WrOpcode};
use roce_wire::{Datagram, Opcode, Psn, Qpn, datagram};
use schema::Field;
pub use schema::{EventSchema, Value};

/// Version of the vocabulary: changes when a name or a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

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

impl PacketInfo {
    /// Of a datagram; `None` when not even its first headers can be read.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if let Ok(datagram) = Datagram::parse(bytes) {
            return Some(Self::from(&datagram));
        }
        let (opcode, dest_qpn, psn) = datagram::peek(bytes)?;
        let opcode = Opcode::from_u8(opcode)?;
        Some(Self { opcode, dest_qpn, psn, ack_req: false, payload: 0, aeth: None })
    }
}

impl From<&Datagram<'_>> for PacketInfo {
    fn from(datagram: &Datagram<'_>) -> Self {
        let bth = datagram.bth();
        Self {
            opcode: bth.opcode,
            dest_qpn: bth.dest_qp,
            psn: bth.psn,
            ack_req: bth.ack_req,
            payload: u32::try_from(datagram.payload_len()).unwrap_or(u32::MAX),
            aeth: datagram.aeth().map(|aeth| (aeth.syndrome.to_u8(), aeth.msn.value())),
        }
    }
}

impl Field for PacketInfo {
    fn put(&self, _name: &'static str, put: &mut dyn FnMut(&'static str, Value)) {
        put("opcode", Value::Name(self.opcode.name().to_owned()));
        put("dest_qpn", Value::Number(self.dest_qpn.value().into()));
        put("psn", Value::Number(self.psn.value().into()));
        put("ack_req", Value::Flag(self.ack_req));
        put("payload", Value::Number(self.payload.into()));
        if let Some((syndrome, msn)) = self.aeth {
            put("syndrome", Value::Number(syndrome.into()));
            put("msn", Value::Number(msn.into()));
        }
    }

    fn describe(
        _name: &'static str,
        _meaning: &'static str,
        fields: &mut Vec<(&'static str, &'static str)>,
    ) {
        fields.extend([
            ("opcode", "Opcode, as captures show it."),
            ("dest_qpn", "Destination queue pair; 1 is that of management datagrams."),
            ("psn", "PSN."),
            ("ack_req", "The packet asks for an acknowledgement."),
            ("payload", "Bytes of payload."),
            ("syndrome", "Syndrome byte of the AETH; absent where there is none."),
            ("msn", "Message sequence number of the AETH; absent where there is none."),
        ]);
    }
}

reasons! {
    /// Why a received datagram was dropped without an answer.
    DropReason:
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

reasons! {
    /// Why a request is refused: with a NAK, where the transport has answers.
    NakReason:
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

events! {
    /// One thing that happened.
    Event:
    /// A doorbell was found; so many WQEs are new.
    Doorbell {
        /// Queue pair.
        qpn: Qpn,
        /// WQEs ready to be fetched.
        wqes: u32,
        /// Index of the first of them in the send queue; absent for a receive queue.
        message: Option<u32>,
    },
    /// A send WQE was copied: a message begins. An invalid one fails when it is its turn.
    WqeFetched {
        /// Queue pair.
        qpn: Qpn,
        /// Index in the send queue. With `qpn` it names the message in all its events.
        message: u32,
        /// What the program asks for.
        operation: WrOpcode,
        /// The number that the program gave it.
        wr_id: u64,
        /// Bytes of the message.
        length: u32,
        /// First PSN that it will use.
        first_psn: Psn,
        /// Last PSN that it will use; the one before the first when it uses none.
        last_psn: Psn,
        /// The queue pair that its packets are for; absent where each WQE names one.
        peer_qpn: Option<Qpn>,
    },
    /// A window cannot be bound as a WQE asks.
    BindRefused {
        /// Queue pair.
        qpn: Qpn,
        /// Why.
        reason: BindFault,
    },
    /// A key cannot be invalidated as a WQE asks.
    InvalidationRefused {
        /// Queue pair.
        qpn: Qpn,
        /// Why.
        reason: KeyFault,
    },
    /// A packet leaves.
    Sent {
        /// Our queue pair.
        qpn: Qpn,
        /// Index of the WQE that it is a part of; absent for answers.
        message: Option<u32>,
        /// Headers.
        packet: PacketInfo,
        /// Not for the first time.
        retransmit: bool,
    },
    /// A packet arrived and is checked by its queue pair.
    Received {
        /// Our queue pair.
        qpn: Qpn,
        /// Headers.
        packet: PacketInfo,
    },
    /// A packet is for another engine of the device, which has it now.
    HandedOver {
        /// Headers.
        packet: PacketInfo,
    },
    /// A packet was dropped.
    Dropped {
        /// Why.
        reason: DropReason,
        /// Headers, where they could be read.
        packet: Option<PacketInfo>,
    },
    /// A request was refused with a NAK.
    Nak {
        /// Our queue pair.
        qpn: Qpn,
        /// PSN in the NAK.
        psn: Psn,
        /// Why.
        reason: NakReason,
    },
    /// A request tells that what was expected is lost for good; with it another message begins.
    Lost {
        /// Our queue pair.
        qpn: Qpn,
        /// First PSN that is lost.
        psn: Psn,
    },
    /// A request found no receive WQE: RNR NAK.
    RnrNak {
        /// Our queue pair.
        qpn: Qpn,
        /// PSN in the NAK.
        psn: Psn,
        /// Timer code: how long the peer waits.
        timer: u8,
    },
    /// Bytes were written into application memory.
    Placed {
        /// Our queue pair.
        qpn: Qpn,
        /// PSN of the packet that brought them.
        psn: Psn,
        /// Bytes.
        bytes: u32,
    },
    /// Application memory could not be accessed.
    DmaFault {
        /// Our queue pair.
        qpn: Qpn,
        /// PSN of the packet.
        psn: Psn,
    },
    /// Requests up to and including this PSN are acknowledged.
    Acked {
        /// Our queue pair.
        qpn: Qpn,
        /// PSN.
        psn: Psn,
    },
    /// The requester goes back.
    Rewound {
        /// Our queue pair.
        qpn: Qpn,
        /// First PSN to be sent again.
        psn: Psn,
        /// What made it.
        cause: RewindCause,
    },
    /// A completion was written.
    Completed {
        /// Our queue pair.
        qpn: Qpn,
        /// Index of its WQE in the send queue; absent for a receive.
        message: Option<u32>,
        /// Status.
        status: WcStatus,
        /// From the receive side.
        receive: bool,
        /// The number that the program gave the WQE.
        wr_id: u64,
    },
    /// A completion found its CQ full, or a fault was forced that does the same.
    CqOverflow {
        /// Handle of the CQ.
        cq: u32,
    },
    /// A queue pair changed its state by itself.
    State {
        /// Queue pair.
        qpn: Qpn,
        /// Old.
        from: QpState,
        /// New.
        to: QpState,
    },
    /// An injected fault disturbs a packet. What it delays, reorders or repeats arrives or leaves
    /// with another event.
    Fault {
        /// Number of the fault, as `rnic fault list` shows it.
        fault: u32,
        /// What it does.
        kind: Disturbance,
        /// The packet was to be sent; else it has arrived.
        outgoing: bool,
        /// Headers, where they could be read.
        packet: Option<PacketInfo>,
    },
    /// A packet that a fault held back goes on.
    Released {
        /// It is sent; else it arrives.
        outgoing: bool,
        /// Headers, where they could be read.
        packet: Option<PacketInfo>,
    },
}

impl Event {
    /// The queue pair of this engine that it happened to, where that is known.
    pub fn qpn(&self) -> Option<Qpn> {
        match *self {
            Self::Doorbell { qpn, .. }
            | Self::WqeFetched { qpn, .. }
            | Self::BindRefused { qpn, .. }
            | Self::InvalidationRefused { qpn, .. }
            | Self::Sent { qpn, .. }
            | Self::Received { qpn, .. }
            | Self::Nak { qpn, .. }
            | Self::Lost { qpn, .. }
            | Self::RnrNak { qpn, .. }
            | Self::Placed { qpn, .. }
            | Self::DmaFault { qpn, .. }
            | Self::Acked { qpn, .. }
            | Self::Rewound { qpn, .. }
            | Self::Completed { qpn, .. }
            | Self::State { qpn, .. } => Some(qpn),
            Self::Dropped { .. }
            | Self::HandedOver { .. }
            | Self::CqOverflow { .. }
            | Self::Fault { .. }
            | Self::Released { .. } => None,
        }
    }

    /// A program or its connection is in trouble: what a peer, a WQE or memory did wrong, not
    /// what the network loses.
    pub fn is_error(&self) -> bool {
        match self {
            Self::Completed { status, .. } => *status != WcStatus::Success,
            Self::Nak { reason, .. } => *reason != NakReason::Sequence,
            Self::State { to, .. } => matches!(to, QpState::Err | QpState::Sqe),
            Self::BindRefused { .. }
            | Self::InvalidationRefused { .. }
            | Self::Lost { .. }
            | Self::DmaFault { .. }
            | Self::CqOverflow { .. } => true,
            _ => false,
        }
    }
}

reasons! {
    /// What an injected fault does to a packet.
    Disturbance:
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// Up to four later ones overtake it.
    Reorder,
    /// It arrives later.
    Delay,
    /// One bit is flipped.
    Corrupt,
    /// ECN says that a switch was congested.
    Mark,
    /// An acknowledgement becomes an RNR NAK.
    Rnr,
    /// An acknowledgement becomes a NAK.
    Nak,
    /// The completion queue of its queue pair breaks.
    CqError,
}

reasons! {
    /// What makes a requester go back.
    RewindCause:
    /// NAK: PSN sequence error.
    SequenceNak,
    /// A response shows that an earlier READ or atomic response was lost.
    ImpliedNak,
    /// The local ACK timeout passed.
    Timeout,
    /// The RNR wait is over.
    Rnr,
}
