//! What a daemon tells about itself: written by the daemon, read by `rnic`, and shown to programs
//! as `rnic status|qp|mr|cq|fault list --json`. The names of the fields are for others to rely on.

use rnic_core::QpCounters;
use serde::{Deserialize, Serialize};

/// `rnic status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub uptime_seconds: u64,
    pub device: String,
    /// Absent where the device has no interface of its own.
    pub netdev: Option<String>,
    /// Packet I/O in words.
    pub io: String,
    pub profile: String,
    pub port: Port,
    pub gids: Vec<Gid>,
    /// Engines of other users' programs, and those in programs.
    pub users: Vec<User>,
    pub totals: Totals,
}

/// The device's port.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Port {
    pub active: bool,
    /// Bytes of payload in a packet at most.
    pub active_mtu: u32,
    pub netdev_mtu: u32,
    pub speed_mbps: u32,
}

/// An entry of the GID table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gid {
    pub index: u32,
    pub address: String,
}

/// Where an engine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnginePlace {
    /// In a process that the daemon has started for another user.
    Process,
    /// In a program of the daemon's own user, which it serves alone.
    Program,
    /// In threads of the daemon, for programs of its own user.
    Daemon,
}

impl EnginePlace {
    /// In one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Program => "program",
            Self::Daemon => "daemon",
        }
    }
}

/// An engine beside the one that has the daemon's wire.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// The process.
    pub pid: u32,
    /// Number of its shard of the device.
    pub shard: u8,
    pub place: EnginePlace,
    pub sessions: u64,
    /// It, and its engine, answered in time.
    pub answers: bool,
    /// Bytes of frames that its engine has sent and received; absent if it does not answer.
    pub tx_bytes: Option<u64>,
    pub rx_bytes: Option<u64>,
    /// What the daemon's wire did for it, if it has no sockets of its own.
    pub handed_over: Option<HandedOver>,
}

/// Frames of a user on the daemon's wire.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct HandedOver {
    /// Trains of it that were refused: they were not what an engine sends.
    pub tx_refused: u64,
    /// Datagrams for it that were lost because it did not take them in time.
    pub rx_lost: u64,
}

/// A connection to the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Session {
    pub session: u32,
    pub pid: u32,
    pub uid: u32,
    /// Of the context, when it opened the device.
    pub client: Option<u32>,
    pub command: Option<String>,
}

/// A name that a program chose, as it is shown: what would command a terminal is replaced.
pub fn shown(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// How many objects there are.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    pub qps: u64,
    pub cqs: u64,
    pub mrs: u64,
}

/// A queue pair of `rnic qp`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Qp {
    pub qp: u32,
    pub qpn: u32,
    pub client: u32,
    #[serde(rename = "type")]
    pub transport: String,
    pub state: String,
    /// The peer, from RTR on.
    pub dest_qpn: Option<u32>,
    pub dgid: Option<String>,
    /// Bytes.
    pub path_mtu: Option<u32>,
    /// Send WQEs that the engine has and that are not complete.
    pub outstanding: u32,
    /// Send WQEs that the engine has not fetched.
    pub posted: u32,
    /// Send WQEs that may be posted at a time.
    pub max_send_wr: u32,
    /// Absent where the transport has none, and of an XRC target until a request names one.
    pub receive_queue: Option<ReceiveQueue>,
    /// The oldest PSN without an acknowledgement.
    pub una: u32,
    /// The PSN of the next packet; behind `sent_psn` while packets are sent again.
    pub next_psn: u32,
    /// One past the highest PSN that was sent.
    pub sent_psn: u32,
    /// First PSN of the next WQE to be fetched.
    pub free_psn: u32,
    pub expected_psn: u32,
    /// Absent while it waits for nothing.
    pub timer: Option<Timer>,
    /// Attributes; those left count from the last progress on.
    pub timeout: u8,
    pub retry_cnt: u8,
    pub retries_left: u8,
    pub rnr_retry: u8,
    pub rnr_retries_left: u8,
    /// Absent where the transport has no such queue, and of an XRC target until a request names
    /// one.
    pub send_cq: Option<u32>,
    pub recv_cq: Option<u32>,
    pub counters: QpCounters,
}

/// A queue of receive WQEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiveQueue {
    /// WQEs that no message has used.
    pub posted: u32,
    pub max_wr: u32,
    /// Handle of the shared receive queue; absent where it is the queue pair's own.
    pub srq: Option<u32>,
}

/// What a queue pair waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timer {
    /// `ack_timeout`: without an acknowledgement until then it sends again. `rnr_wait`: the peer
    /// had no receive WQE. `pause`: what it sent may be on its way still; it sends again then.
    pub reason: String,
    /// Microseconds until then.
    pub left_us: u64,
}

/// A memory region of `rnic mr`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mr {
    pub mr: u32,
    pub client: u32,
    pub pd: u32,
    pub iova: u64,
    pub length: u64,
    pub key: u32,
    /// The rights as verbs call them, without `IBV_ACCESS_`.
    pub access: Vec<String>,
    /// How the daemon reaches it: `process`, or `shared` where it maps it; `none` for a null
    /// region.
    pub memory: String,
    /// Memory windows that are bound to it.
    pub windows: u32,
}

/// A completion queue of `rnic cq`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cq {
    pub cq: u32,
    pub client: u32,
    pub capacity: u32,
    pub written: u64,
    pub polled: u64,
    /// Work queues that complete into it.
    pub queues: u32,
    pub broken: bool,
}

/// An object of one of the lists.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Object {
    /// Of `rnic qp`.
    Qp(Qp),
    /// Of `rnic mr`.
    Mr(Mr),
    /// Of `rnic cq`.
    Cq(Cq),
}

impl Object {
    /// Whose it is.
    pub fn client(&self) -> u32 {
        match self {
            Self::Qp(qp) => qp.client,
            Self::Mr(mr) => mr.client,
            Self::Cq(cq) => cq.client,
        }
    }

    /// Its number on the wire, if it is a queue pair.
    pub fn qpn(&self) -> Option<u32> {
        match self {
            Self::Qp(qp) => Some(qp.qpn),
            Self::Mr(_) | Self::Cq(_) => None,
        }
    }

    /// As `rnic` reads it: without the name of its kind, which is that of the list.
    ///
    /// # Errors
    /// None in practice: these are strings and numbers.
    pub fn to_json(&self) -> serde_json::Result<String> {
        match self {
            Self::Qp(qp) => serde_json::to_string(qp),
            Self::Mr(mr) => serde_json::to_string(mr),
            Self::Cq(cq) => serde_json::to_string(cq),
        }
    }
}

/// A fault in force, of `rnic fault list`. Absent filters are null.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// Its number, for `rnic fault remove` and in events.
    pub fault: u32,
    pub kind: String,
    pub delay_us: Option<u64>,
    /// What acknowledgements say instead.
    pub syndrome: Option<u8>,
    pub probability: f64,
    /// It strikes what is sent; else what is received.
    pub sent: bool,
    pub qpn: Option<u32>,
    pub opcode: Option<u8>,
    pub psn_first: Option<u32>,
    pub psn_last: Option<u32>,
    /// It spares so many packets that match, and then strikes every so many.
    pub after: u32,
    pub every: u32,
    /// How many packets more it strikes.
    pub left: Option<u64>,
    /// Packets that match and that no other fault had struck.
    pub matched: u64,
    pub struck: u64,
}

/// With the process that made it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Made<T> {
    #[serde(flatten)]
    pub object: T,
    pub pid: Option<u32>,
    pub command: Option<String>,
}
