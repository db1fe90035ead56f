//! How much one client may have.

use serde::Deserialize;

/// Limits of one client (one opened device context).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Quota {
    /// Sessions of one user.
    pub sessions: u32,
    /// Groups that the clients of one user may be of at the same time: each has an engine.
    pub groups: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Protection domains.
    pub pds: u32,
    /// Completion channels.
    pub channels: u32,
    /// Bytes registered, all regions together.
    pub registered_bytes: u64,
    /// Bytes of queues, which the daemon allocates.
    pub ring_bytes: u64,
    /// Bytes of registered memory that the daemon maps, of all clients together: it counts as the
    /// daemon's own. 0 refuses to map any.
    pub shared_bytes: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sessions: 1024,
            groups: 4,
            qps: 16_384,
            cqs: 16_384,
            mrs: 262_144,
            pds: 4_096,
            channels: 1_024,
            registered_bytes: 1 << 46,
            ring_bytes: 4 << 30,
            shared_bytes: half_of_memory(),
        }
    }
}

fn half_of_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit)) / 2
}
