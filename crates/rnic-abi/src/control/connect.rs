//! What programs and the connection manager say to each other.
//!
//! Requests travel on the control socket, events on sockets of their own, one for each event
//! channel, as datagrams of at most [`MAX_CM_EVENT`] bytes.

use serde::{Deserialize, Serialize};

/// Longest encoded event, bytes.
pub const MAX_CM_EVENT: usize = 512;

/// What a program asks of the connection manager. Identifiers and channels mean nothing in another
/// session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CmRequest {
    /// Answer: [`Reply::Handle`](super::Reply::Handle) with one descriptor, on which events come.
    OpenChannel,
    /// Those of its identifiers that are left are released: they are of requests that the program
    /// has not read. Answer: [`Reply::Done`](super::Reply::Done), as to all that follow but those
    /// that say otherwise.
    CloseChannel {
        /// Handle.
        channel: u32,
    },
    /// A new identifier with a port. Answer: [`Reply::Bound`](super::Reply::Bound).
    Bind {
        /// Where its events go.
        channel: u32,
        /// Port space.
        space: u16,
        /// GID of the address; that of an unspecified one for all of its family, absent for all.
        address: Option<[u8; 16]>,
        /// 0 for any that is free.
        port: u16,
        /// Others that share may have the same port.
        shared: bool,
    },
    /// Asks for the way to a peer: [`CmHappening::Resolved`] follows.
    Resolve {
        /// Identifier.
        id: u32,
        /// The peer, or a group.
        to: CmTarget,
        /// How long it may take.
        limit_ms: u32,
    },
    /// Peers may connect to it.
    Listen {
        /// Identifier.
        id: u32,
        /// Requests that may wait for the program's decision.
        backlog: u32,
    },
    /// Peers may not connect to it any more.
    StopListening {
        /// Identifier.
        id: u32,
    },
    /// What peers ask a listener for, and its program has not decided. Answer:
    /// [`Reply::Handles`](super::Reply::Handles).
    Undecided {
        /// Identifier.
        id: u32,
    },
    /// Asks a peer for a connection. Answer: [`Reply::Handle`](super::Reply::Handle), the first PSN
    /// that the own queue pair has to expect.
    Connect {
        /// Identifier.
        id: u32,
        /// The peer.
        to: CmTarget,
        /// Kind of the queue pairs.
        service: CmService,
        /// The own queue pair.
        offer: CmOffer,
        /// 3 bits.
        retry_count: u8,
        /// Path MTU code.
        mtu_code: u8,
        /// 5 bits.
        ack_timeout: u8,
        /// For the peer's program.
        private: Vec<u8>,
    },
    /// Asks a peer for the queue pair behind a datagram service.
    LookUp {
        /// Identifier.
        id: u32,
        /// The peer.
        to: CmTarget,
        /// For the peer's program.
        private: Vec<u8>,
    },
    /// Accepts the connection that a peer asks for.
    Accept {
        /// Identifier.
        id: u32,
        /// The own queue pair.
        offer: CmOffer,
        /// For the peer's program.
        private: Vec<u8>,
    },
    /// Tells a peer the queue pair that it looks for.
    Answer {
        /// Identifier.
        id: u32,
        /// Number.
        qpn: u32,
        /// What datagrams to it have to show.
        qkey: u32,
        /// For the peer's program.
        private: Vec<u8>,
    },
    /// Refuses what a peer asks for.
    Reject {
        /// Identifier.
        id: u32,
        /// For the peer's program.
        private: Vec<u8>,
    },
    /// The own queue pair is ready, or has received something.
    Establish {
        /// Identifier.
        id: u32,
    },
    /// Ends the connection.
    Disconnect {
        /// Identifier.
        id: u32,
    },
    /// Lets go of the identifier.
    Release {
        /// Identifier.
        id: u32,
    },
    /// Events of the identifier go to another channel from now on.
    Move {
        /// Identifier.
        id: u32,
        /// Handle.
        channel: u32,
    },
    /// Sends this to the channel of the identifier: a program waits for it as for other events.
    Post(CmNotice),
}

/// Kinds of connected queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CmService {
    /// RC.
    Reliable,
    /// UC.
    Unreliable,
    /// XRC, from an initiator to a target.
    Extended,
}

/// A peer, and how to reach it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmTarget {
    /// Own GID.
    pub local: [u8; 16],
    /// The peer's.
    pub remote: [u8; 16],
    /// Port of its listener.
    pub port: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
}

/// What the ends of a connection tell each other of their queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CmOffer {
    /// Number.
    pub qpn: u32,
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

/// One datagram on an event channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmNotice {
    /// The identifier; a new one with [`CmHappening::Request`] and [`CmHappening::Lookup`].
    pub id: u32,
    /// What happened to it.
    pub what: CmHappening,
    /// What the peer's program added.
    pub private: Vec<u8>,
}

/// What happens to an identifier.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CmHappening {
    /// A peer asks for a connection.
    Request {
        /// Where from.
        from: CmSource,
        /// Kind of the queue pairs.
        service: CmService,
        /// The peer's queue pair.
        offer: CmOffer,
        /// First PSN that the peer expects.
        starting_psn: u32,
        /// First PSN that the own queue pair has to expect.
        psn: u32,
        /// 3 bits.
        retry_count: u8,
        /// Path MTU code.
        mtu_code: u8,
        /// 5 bits.
        ack_timeout: u8,
    },
    /// A peer looks for the queue pair of a datagram service.
    Lookup {
        /// Where from.
        from: CmSource,
    },
    /// The way to the peer is found (0), or is not (an errno value).
    Resolved(i32),
    /// The peer accepts.
    Response {
        /// The peer's queue pair.
        offer: CmOffer,
        /// First PSN that the peer expects.
        starting_psn: u32,
    },
    /// The connection is up.
    Established,
    /// The queue pair of a datagram service.
    Found {
        /// Number.
        qpn: u32,
        /// What datagrams to it have to show.
        qkey: u32,
    },
    /// The peer refuses, for this reason.
    Rejected(u16),
    /// The peer does not answer.
    Unreachable,
    /// The connection is over.
    Disconnected,
    /// The queue pair may be used again.
    TimewaitExit,
    /// An event that the library makes itself, and its status.
    Posted(u32, i32),
}

/// Where a peer's request comes from, and the listener that it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CmSource {
    /// The identifier that listens.
    pub listener: u32,
    /// Own GID.
    pub local: [u8; 16],
    /// The peer's.
    pub remote: [u8; 16],
    /// Own port.
    pub local_port: u16,
    /// The peer's.
    pub remote_port: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
}
