//! What the connection manager is told, and what it tells.

use roce_wire::cm::{PortSpace, TransportType};
use roce_wire::mad::MAD_LEN;
use roce_wire::{Flow, Psn, QKey, Qpn};
use std::net::IpAddr;

/// Where the events of an identifier go; the caller knows what it means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// Whose it is: no user has more than a share of the identifiers, or shares a port with
    /// another one.
    pub user: u8,
    /// Of all that are this user's.
    pub place: u64,
}

/// The way of management datagrams to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// The management queue pair of the peer.
    pub qpn: Qpn,
}

impl Route {
    /// The way back to where a datagram came from.
    pub fn back(flow: &Flow, sender: Qpn) -> Self {
        Self {
            local: flow.dst,
            remote: flow.src,
            traffic_class: flow.tos,
            flow_label: flow.flow_label,
            qpn: sender,
        }
    }

    /// Between the same two addresses.
    pub(super) fn joins_same(&self, other: &Self) -> bool {
        (self.local, self.remote) == (other.local, other.remote)
    }
}

/// What a program adds to a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl PrivateData {
    /// The longest of any message.
    pub const MAX: usize = 196;
    /// Nothing.
    pub const NONE: Self = Self { len: 0, bytes: [0; Self::MAX] };

    /// `None` when it is longer than any message takes.
    pub fn new(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Self { len: u8::try_from(data.len()).ok()?, bytes })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The whole area of a message, `N` bytes, from `at` on; `None` when it does not fit.
    pub(super) fn area<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let data = self.as_slice();
        let mut area = [0; N];
        area.get_mut(at..at.checked_add(data.len())?)?.copy_from_slice(data);
        Some(area)
    }

    /// The area of a received message. Peers are told apart by content, not by length: the area is
    /// always full.
    pub(super) fn received(area: &[u8]) -> Self {
        Self::new(area.get(..Self::MAX).unwrap_or(area)).unwrap_or(Self::NONE)
    }
}

/// What both ends of a connection tell each other of their queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Number.
    pub qpn: Qpn,
    /// It takes its receives from a shared queue.
    pub srq: bool,
    /// READs and atomics that its owner accepts at a time.
    pub responder_resources: u8,
    /// READs and atomics that its owner will have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// 3 bits; 7 is infinite.
    pub rnr_retry_count: u8,
}

/// A connection that a program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The way to the peer.
    pub route: Route,
    /// Port of the listener.
    pub port: u16,
    /// [`TransportType::Rc`], [`TransportType::Uc`] or, for XRC, [`TransportType::Extended`].
    pub transport: TransportType,
    /// The own queue pair.
    pub offer: Offer,
    /// 3 bits.
    pub retry_count: u8,
    /// Path MTU code.
    pub mtu_code: u8,
    /// Local ACK timeout, 5 bits.
    pub ack_timeout: u8,
    /// At most [`MAX_REQ_PRIVATE`](super::MAX_REQ_PRIVATE) bytes.
    pub private: PrivateData,
}

/// What an identifier hears of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmEvent {
    /// Where it goes.
    pub owner: Owner,
    /// The identifier; a new one with [`Happening::Request`] and [`Happening::Lookup`].
    pub id: u32,
    /// What happened.
    pub what: Happening,
    /// What the peer's program added.
    pub private: PrivateData,
}

/// What happened to an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    /// A peer asks for a connection.
    Request(Request),
    /// A peer asks for the queue pair behind a datagram service.
    Lookup(Lookup),
    /// The peer accepts: the program has to make its queue pair ready, then to
    /// [establish](super::Cm::establish).
    Response(Response),
    /// The connection is up.
    Established,
    /// The queue pair of a datagram service.
    Found {
        /// Number.
        qpn: Qpn,
        /// What its datagrams have to show.
        qkey: QKey,
    },
    /// The peer refuses: REJ reason, or SIDR status.
    Rejected(u16),
    /// The peer does not answer.
    Unreachable,
    /// The connection is over.
    Disconnected,
    /// Nothing of the connection is on the way any more: its queue pair may be used again.
    TimewaitExit,
}

/// A REQ that was accepted for its listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The identifier that listens.
    pub listener: u32,
    /// The way to the peer.
    pub route: Route,
    /// Port space of the listener.
    pub space: PortSpace,
    /// Own port and the peer's.
    pub ports: (u16, u16),
    /// [`TransportType::Rc`], [`TransportType::Uc`] or, for XRC, [`TransportType::Extended`].
    pub transport: TransportType,
    /// The peer's queue pair.
    pub offer: Offer,
    /// First PSN that the peer expects.
    pub starting_psn: Psn,
    /// First PSN that the own queue pair has to expect.
    pub psn: Psn,
    /// 3 bits.
    pub retry_count: u8,
    /// Path MTU code.
    pub mtu_code: u8,
    /// The peer's local ACK timeout, 5 bits.
    pub ack_timeout: u8,
}

/// A SIDR_REQ that was accepted for its listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// The identifier that listens.
    pub listener: u32,
    /// The way to the peer.
    pub route: Route,
    /// Port space of the listener.
    pub space: PortSpace,
    /// Own port and the peer's.
    pub ports: (u16, u16),
}

/// A REP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response {
    /// The peer's queue pair.
    pub offer: Offer,
    /// First PSN that the peer expects.
    pub starting_psn: Psn,
    /// How long the peer may take to acknowledge, 5 bits.
    pub ack_delay: u8,
}

/// A management datagram to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Where.
    pub route: Route,
    /// What.
    pub mad: [u8; MAD_LEN],
    /// Whose program has asked for it; none where it answers what came from that address, which
    /// may be forged.
    pub user: Option<u8>,
}

/// Why the connection manager does not do what a program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmError {
    /// There is no such identifier.
    NoSuchId,
    /// Not in its state.
    State,
    /// Another identifier has the port.
    AddressInUse,
    /// There are as many identifiers as there may be, or all ports are in use.
    Full,
    /// A number that no message can carry, or too much private data.
    Invalid,
    /// The queue pair has a connection already.
    QpInUse,
}

counters! {
    /// What the connection manager counts.
    CmCounters:
    /// Messages sent.
    cm_sent,
    /// Messages sent again because there was no answer.
    cm_retransmitted,
    /// Messages received.
    cm_received,
    /// Datagrams that are no messages of connection management.
    cm_malformed,
    /// Messages that were received before.
    cm_duplicates,
    /// Messages about a connection that there is not, or from another peer than its own.
    cm_strangers,
    /// Messages that its state does not accept.
    cm_out_of_state,
    /// Requests for connections refused.
    cm_refused,
    /// Connections given up because the peer did not answer.
    cm_timeouts,
}
