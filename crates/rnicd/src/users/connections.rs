//! What the programs of an engine process ask of the connection manager.
//!
//! The manager is in the daemon: QP1 and ports are of the device, not of a user. An engine process
//! passes the requests of its sessions on, in messages as all others; their events go from the
//! daemon to the programs directly. What it asks for is believed as little as what a client of the
//! daemon's own asks for: it can name nothing but what its own sessions have made, queue pairs of
//! its own engine, and ports that no other user has.

use super::Users;
use super::engine::{EngineProcess, Place};
use crate::connections::{Connections, OWNER, Rights};
use rnic_abi::control::{CmRequest, Refusal, Reply};
use rnic_host::quota::Resource;
use rnic_host::refusal::refuse;
use rnic_host::server::{ConnectionSession, Ledger};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Those sessions of one engine process that use the connection manager. Dropped, what they have
/// made ends.
pub(super) struct Sessions {
    manager: Arc<Connections>,
    rights: Rights,
    most: u64,
    /// By the numbers that the process gives them.
    open: HashMap<u32, Box<dyn ConnectionSession>>,
}

impl Sessions {
    pub(super) fn of(users: &Users, engine: &EngineProcess) -> Self {
        let may = |resource| users.parts.ledger.limit(engine.user().0, resource);
        let engines = match engine.place() {
            Place::Daemon => users.parts.connections.own_engines(),
            Place::Process | Place::Program => 1 << engine.number(),
        };
        let rights = Rights {
            user: if engine.is_own() { OWNER } else { engine.number() },
            engines,
            // As programs that the daemon itself serves.
            first_port: if engine.is_own() { 0 } else { first_port() },
            max_channels: may(Resource::Channels),
        };
        let (manager, most) = (Arc::clone(&users.parts.connections), may(Resource::Sessions));
        Self { manager, rights, most, open: HashMap::new() }
    }

    pub(super) fn execute(
        &mut self,
        session: u32,
        request: CmRequest,
    ) -> (Result<Reply, Refusal>, Option<OwnedFd>) {
        if !self.open.contains_key(&session) && self.open.len() as u64 >= self.most {
            return (Err(refuse(libc::EAGAIN, "the user has too many sessions")), None);
        }
        let open = || self.manager.open(self.rights);
        match self.open.entry(session).or_insert_with(open).execute(request) {
            Ok((reply, fd)) => (Ok(reply), fd),
            Err(why) => (Err(why), None),
        }
    }

    pub(super) fn close(&mut self, session: u32) {
        self.open.remove(&session);
    }
}

/// Lower ports are for root, as the kernel's are.
fn first_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(FIRST_PORT)
}

/// Where the kernel does not say.
const FIRST_PORT: u16 = 1024;
