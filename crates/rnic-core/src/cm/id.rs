//! Identifiers: what the connection manager keeps of each.

use super::types::{Owner, Route};
use crate::time::Instant;
use roce_wire::cm::PortSpace;
use roce_wire::mad::MAD_LEN;
use roce_wire::{Psn, Qpn};
use std::net::IpAddr;
use std::time::Duration;

/// An identifier.
#[derive(Debug)]
pub(super) struct Id {
    /// `None` once its program has let go of it: it ends by itself then.
    pub(super) owner: Option<Owner>,
    /// That of the owner that it had first.
    pub(super) user: u8,
    /// The port that it has taken.
    pub(super) port: Option<Port>,
    pub(super) state: State,
    pub(super) link: Option<Link>,
    /// It has had a connection.
    pub(super) was_connected: bool,
    /// When something is due.
    pub(super) deadline: Option<Instant>,
}

impl Id {
    pub(super) fn new(owner: Owner, state: State) -> Self {
        let (user, owner) = (owner.user, Some(owner));
        Self { owner, user, port: None, state, link: None, was_connected: false, deadline: None }
    }
}

/// A port, at one address or at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Port {
    pub(super) space: PortSpace,
    pub(super) number: u16,
    /// One, the unspecified one for all of its family, or none for all.
    pub(super) address: Option<IpAddr>,
    /// Others of this user that say so, too, may have it.
    pub(super) sharers: Option<u8>,
}

/// How far an identifier is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nothing yet, or not any more.
    Idle,
    Listening {
        /// Requests that its program may leave undecided.
        backlog: u32,
        /// Those it has not decided.
        pending: u32,
    },
    /// Waits for the answer to its REQ.
    ReqSent,
    /// Has a REP that its program has not confirmed.
    RepReceived,
    /// Has a REQ that its program has not decided.
    ReqReceived,
    /// Waits for the answer to its REP.
    RepSent,
    Established,
    /// Waits for the answer to its DREQ.
    DreqSent,
    /// Packets of the connection may still be on the way.
    Timewait,
    /// Waits for the answer to its SIDR_REQ.
    SidrSent,
    /// Has a SIDR_REQ that its program has not decided.
    SidrReceived,
    /// Has answered a SIDR_REQ, and will again.
    SidrAnswered,
}

impl State {
    /// Its program has to decide.
    pub(super) fn is_pending(self) -> bool {
        matches!(self, Self::ReqReceived | Self::SidrReceived)
    }

    pub(super) fn listens(self) -> bool {
        matches!(self, Self::Listening { .. })
    }

    /// The queue pairs of both ends belong to the connection.
    pub(super) fn is_open(self) -> bool {
        matches!(
            self,
            Self::ReqSent
                | Self::RepReceived
                | Self::ReqReceived
                | Self::RepSent
                | Self::Established
                | Self::DreqSent
        )
    }
}

/// One end of a connection, or of the search for a datagram service.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) route: Route,
    /// The identifier that listens, of what came from a peer.
    pub(super) listener: Option<u32>,
    /// Own and the peer's communication identifier, or request identifier.
    pub(super) local_comm: u32,
    pub(super) remote_comm: u32,
    /// Of the REQ.
    pub(super) transaction: u64,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    /// First PSN that the own queue pair has to expect.
    pub(super) psn: Psn,
    /// What is sent again, or once more for a duplicate.
    pub(super) last: Option<[u8; MAD_LEN]>,
    /// How long an answer may take.
    pub(super) patience: Duration,
    /// How often the message may still be sent.
    pub(super) tries: u8,
    /// The peer has asked for more time.
    pub(super) was_put_off: bool,
    /// How long packets may be on the way after the end.
    pub(super) timewait: Duration,
    /// From an XRC initiator to a target.
    pub(super) is_xrc: bool,
}

/// A time in the form of messages: about 4.096 us times two to this power, at least a millisecond.
/// What a message says is not believed beyond a limit: it could be hours.
pub(super) fn time_of(exponent: u8) -> Duration {
    // Rule: BoundedWaits
    let exponent = exponent.min(LONGEST);
    Duration::from_millis(1 << exponent.max(8).saturating_sub(8))
}

/// Exponent of a minute, which is what Linux asks for where a program takes its time.
const LONGEST: u8 = 24;
