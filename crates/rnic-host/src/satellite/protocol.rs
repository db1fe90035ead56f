//! What the daemon and a satellite tell each other, over a SEQPACKET socket pair.
//!
//! The daemon believes nothing that it reads: every message is decoded whole, every number is
//! compared with what the daemon itself knows, and a satellite that breaks the rules is cut off.

use crate::inspect::{Found, Numbers, Question};
use crate::observe::Wants;
use crate::quota::{Amounts, Resource};
use crate::report::Session;
use crate::server::NUMBERS;
use crate::settings::{Profile, Settings};
use crate::wire::FaultChange;
use rnic_abi::control::{CmRequest, DeviceInfo, GidEntry, PortInfo, Refusal, Reply};
use rnic_abi::verbs::AhAttr;
use rnic_core::command::{Path, PortState};
use rnic_core::ports::HopId;
use rnic_net::{Change, Incarnation};
use roce_wire::Flow;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// From the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToEngine {
    /// The first message. Descriptors: with [`EngineWire::HandOver`] what that
    /// needs.
    Start(Box<Start>),
    /// Descriptors: sockets for this address, to receive and to send, with
    /// [`EngineWire::Sockets`]; and where the kernel counts what arrives for each shard, where it
    /// does.
    Sockets(IpAddr),
    /// Descriptor: a socket that receives what is sent to this group, with
    /// [`EngineWire::Sockets`].
    Group(IpAddr),
    /// A client of the user. Descriptor: its connection.
    Client,
    /// A client whose greeting the daemon has answered, and its next request: to open the device of
    /// this name. Descriptor: its connection.
    Opening(String),
    /// The network changed.
    Network(NetworkState),
    /// The answer to the call of this number. Descriptor: with an event channel the program's end.
    Answer(u32, CallAnswer),
    /// For display. Answered with [`FromEngine::Told`] and the number.
    Ask(u32, Inquiry),
    /// It shows what happens in it. Descriptor: the socket for that.
    Observe(Wants),
    /// It disturbs what it receives.
    Faults(FaultChange),
    /// It is not needed any more.
    End,
}

/// What a satellite starts with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    pub uid: u32,
    pub gid: u32,
    /// Log filter.
    pub log: String,
    pub settings: Settings,
    pub profile: Profile,
    pub shard: u8,
    /// For keys and QP numbers.
    pub secret: [u64; 2],
    pub device: DeviceInfo,
    /// Packet I/O in words.
    pub io: String,
    /// The daemon's user and process.
    pub owner: u32,
    pub daemon: u32,
    /// What the user may have.
    pub limits: Amounts,
    pub network: NetworkState,
    pub wire: EngineWire,
}

/// How its frames leave and arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EngineWire {
    /// Through sockets of its own; with the interface of link-local addresses.
    Sockets(u32),
    /// Through the daemon's wire.
    HandOver,
}

/// The network as a session sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NetworkState {
    pub port: PortInfo,
    pub gids: Vec<GidEntry>,
    /// That the device has.
    pub addresses: Vec<IpAddr>,
    /// Index of the device's interface.
    pub interface: u32,
    /// Programs are told that the GID table changed.
    pub gids_changed: bool,
}

impl NetworkState {
    /// For the engine.
    pub fn port_state(&self) -> PortState {
        let Self { port, gids_changed, .. } = self;
        PortState { active: port.active, active_mtu: port.active_mtu, gids_changed: *gids_changed }
    }

    /// What the engine is told.
    pub(super) fn change(&self) -> Change {
        let (port, addresses) = (self.port_state(), self.addresses.clone());
        // The daemon gives it other sockets where its interface is another one with the same index.
        let interface = Incarnation { index: self.interface, ..Incarnation::default() };
        Change { port, addresses, mtu: self.port.netdev_mtu, interface }
    }
}

/// What is asked of a satellite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Inquiry {
    /// Of its engine.
    Engine(Question),
    /// Its sessions, from this number on: [`SESSIONS`](crate::server::SESSIONS) at most.
    Sessions(u32),
}

/// From a satellite.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromEngine {
    /// Answered with [`ToEngine::Answer`] and the number.
    Call(u32, Call),
    /// No queue pair of the user is attached to this group any more.
    Leave(IpAddr),
    /// A session is over that has used the connection manager.
    CloseConnections(u32),
    /// The user gives so much of everything back.
    Give(Amounts),
    /// Hops of ways that are not used any more, each with how many of the [`Way`]s that were
    /// answered with it.
    GiveWays(Vec<(u32, u32)>),
    /// The answer to [`ToEngine::Ask`].
    Told(u32, Told),
    /// All of so many clients that it was given are gone, for some time.
    Idle(u32),
    /// A line for the log.
    Log(Severity, String),
    /// What its engine has counted, at its end or shortly before: the last one counts.
    Counted(Numbers),
}

/// What only the daemon can do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Call {
    /// The way to the destination of an address handle.
    Resolve(AhAttr),
    /// A queue pair of the user is attached to this group.
    Join(IpAddr),
    /// The user takes so much of each: all of it or nothing.
    Take(Vec<(Resource, u64)>),
    /// A session, by its number, asks the connection manager for something.
    Connections(u32, CmRequest),
}

/// The answer to a [`Call`].
#[derive(Debug, Serialize, Deserialize)]
pub enum CallAnswer {
    /// To [`Call::Resolve`].
    Way(Result<Way, Refusal>),
    /// To [`Call::Join`].
    Joined(Result<(), Refusal>),
    /// To [`Call::Take`].
    Taken(Result<(), Refusal>),
    /// To [`Call::Connections`].
    Connections(Result<Reply, Refusal>),
}

/// A [`Path`] without the address handle that it is the way for.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Way {
    src: IpAddr,
    dst: IpAddr,
    sport: u16,
    tos: u8,
    hop_limit: u8,
    flow_label: u32,
    df: bool,
    hop: u32,
}

impl From<Path> for Way {
    fn from(path: Path) -> Self {
        let Flow { src, dst, sport, tos, hop_limit, flow_label, df } = path.flow;
        Self { src, dst, sport, tos, hop_limit, flow_label, df, hop: path.hop.0 }
    }
}

impl Way {
    /// The path of this address handle.
    pub fn path(self, attr: AhAttr) -> Path {
        let Self { src, dst, sport, tos, hop_limit, flow_label, df, hop } = self;
        let flow = Flow { src, dst, sport, tos, hop_limit, flow_label, df };
        Path { attr, flow, hop: HopId(hop) }
    }
}

/// The answer to an [`Inquiry`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Told {
    /// To [`Inquiry::Engine`]; `None` when the engine did not answer in time.
    Engine(Option<Found>),
    /// To [`Inquiry::Sessions`].
    Sessions(Vec<Session>),
}

/// Of a line of a satellite's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Severity {
    Error,
    Warning,
    Info,
    Debug,
}

/// The first number of sessions and clients of one satellite, which differ from those of others.
#[must_use]
pub fn first_number(shard: u8) -> u32 {
    u32::from(shard) * NUMBERS
}
