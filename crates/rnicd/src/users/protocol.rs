//! What the daemon and a user's engine process tell each other, over a SEQPACKET socket pair.
//!
//! The daemon believes nothing that it reads: every message is decoded whole, every number is
//! compared with what the daemon itself knows, and a process that breaks the rules is killed. It is
//! public for a program that breaks them: the tests' hostile engine process.

pub use crate::log::Severity;
use rnic_abi::control::{CmRequest, DeviceInfo, GidEntry, PortInfo, Refusal, Reply};
use rnic_abi::verbs::AhAttr;
use rnic_core::command::{Path, PortState};
use rnic_core::ports::HopId;
use rnic_host::inspect::{Found, Numbers, Question};
use rnic_host::quota::{Amounts, Resource};
use rnic_host::report::Session;
use rnic_host::settings::{Profile, Settings};
use rnic_host::wire::FaultChange;
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
    /// [`EngineWire::Sockets`].
    Sockets(IpAddr),
    /// Descriptor: a socket that receives what is sent to this group, with
    /// [`EngineWire::Sockets`].
    Group(IpAddr),
    /// A client of the user. Descriptor: its connection.
    Client,
    /// The network changed.
    Network(NetworkState),
    /// The answer to the call of this number. Descriptor: with an event channel the program's end.
    Answer(u32, CallAnswer),
    /// For display. Answered with [`FromEngine::Told`] and the number.
    Ask(u32, Inquiry),
    /// It shows what it sends and receives. Descriptor: the socket for that.
    Capture,
    /// It disturbs what it receives.
    Faults(FaultChange),
    /// It is not needed any more.
    End,
}

/// What an engine process starts with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Log filter.
    pub(crate) log: String,
    pub(crate) settings: Settings,
    pub(crate) profile: Profile,
    pub(crate) shard: u8,
    /// For keys and QP numbers.
    pub(crate) secret: [u64; 2],
    pub(crate) device: DeviceInfo,
    /// Packet I/O in words.
    pub(crate) io: String,
    /// The daemon's user and process.
    pub(crate) owner: u32,
    pub(crate) daemon: u32,
    /// What the user may have.
    pub(crate) limits: Amounts,
    pub(crate) network: NetworkState,
    pub(crate) wire: EngineWire,
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
    pub(crate) port: PortInfo,
    pub(crate) gids: Vec<GidEntry>,
    /// That the device has.
    pub(crate) addresses: Vec<IpAddr>,
    /// Programs are told that the GID table changed.
    pub(crate) gids_changed: bool,
}

impl NetworkState {
    /// For the engine.
    pub(crate) fn port_state(&self) -> PortState {
        let Self { port, gids_changed, .. } = self;
        PortState { active: port.active, active_mtu: port.active_mtu, gids_changed: *gids_changed }
    }
}

/// What is asked of an engine process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Inquiry {
    /// Of its engine.
    Engine(Question),
    /// Who is connected.
    Sessions,
}

/// From an engine process.
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
    /// The answer to [`ToEngine::Ask`].
    Told(u32, Told),
    /// All of so many clients that it was given are gone, for some time.
    Idle(u32),
    /// A line for the log.
    Log(Severity, String),
    /// The last message: what its engine has counted.
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
    pub(crate) fn path(self, attr: AhAttr) -> Path {
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
