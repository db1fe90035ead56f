//! What a daemon tells about itself: written by the daemon, read by `rnic`, and shown to programs
//! as `rnic status|qp|mr|cq|fault list --json`. The names of the fields are for others to rely on.

use rnic_core::QpCounters;
use serde::{Deserialize, Serialize};

/// `rnic status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) uptime_seconds: u64,
    pub(crate) device: String,
    /// Absent where the device has no interface of its own.
    pub(crate) netdev: Option<String>,
    /// Packet I/O in words.
    pub(crate) io: String,
    pub(crate) profile: String,
    pub(crate) port: Port,
    pub(crate) gids: Vec<Gid>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) totals: Totals,
}

/// The device's port.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) active: bool,
    /// Bytes of payload in a packet at most.
    pub(crate) active_mtu: u32,
    pub(crate) netdev_mtu: u32,
    pub(crate) speed_mbps: u32,
}

/// An entry of the GID table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) address: String,
}

/// A connection to the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) session: u32,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// Of the context, when it opened the device.
    pub(crate) client: Option<u32>,
    pub(crate) command: Option<String>,
}

/// How many objects there are.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) qps: u64,
    pub(crate) cqs: u64,
    pub(crate) mrs: u64,
}

/// A queue pair of `rnic qp`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Qp {
    pub(crate) qp: u32,
    pub(crate) qpn: u32,
    pub(crate) client: u32,
    #[serde(rename = "type")]
    pub(crate) transport: String,
    pub(crate) state: String,
    /// The peer, from RTR on.
    pub(crate) dest_qpn: Option<u32>,
    pub(crate) dgid: Option<String>,
    /// Bytes.
    pub(crate) path_mtu: Option<u32>,
    /// Send WQEs that are not complete.
    pub(crate) outstanding: u32,
    /// The oldest PSN without an acknowledgement.
    pub(crate) una: u32,
    pub(crate) next_psn: u32,
    pub(crate) expected_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) counters: QpCounters,
}

/// A memory region of `rnic mr`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Mr {
    pub(crate) mr: u32,
    pub(crate) client: u32,
    pub(crate) pd: u32,
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) key: u32,
    /// The rights as verbs call them, without `IBV_ACCESS_`.
    pub(crate) access: Vec<String>,
    /// How the daemon reaches it: `process`, or `shared` where it maps it.
    pub(crate) memory: String,
}

/// A completion queue of `rnic cq`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Cq {
    pub(crate) cq: u32,
    pub(crate) client: u32,
    pub(crate) capacity: u32,
    pub(crate) written: u64,
    pub(crate) polled: u64,
    /// Work queues that complete into it.
    pub(crate) queues: u32,
    pub(crate) broken: bool,
}

/// A fault in force, of `rnic fault list`. Absent filters are null.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) delay_us: Option<u64>,
    pub(crate) probability: f64,
    pub(crate) qpn: Option<u32>,
    pub(crate) opcode: Option<u8>,
    pub(crate) psn_first: Option<u32>,
    pub(crate) psn_last: Option<u32>,
    /// How many packets more it strikes.
    pub(crate) left: Option<u64>,
    pub(crate) struck: u64,
}

/// With the process that made it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Made<T> {
    #[serde(flatten)]
    pub(crate) object: T,
    pub(crate) pid: Option<u32>,
    pub(crate) command: Option<String>,
}
