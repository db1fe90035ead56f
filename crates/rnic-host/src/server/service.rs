//! What all sessions share, and a session's place in it.

use super::accounts::{Account, Charge};
use super::groups::Groups;
use super::plane::{Connections, Engines, Functions, Ledger, MoreEngines, Paths};
use super::registry::{Registry, SESSIONS};
use crate::dma::{Own, Process, Space, probe, probe_own};
use crate::quota::Resource;
use crate::refusal::Refused;
use crate::report;
use crate::settings::{Profile, name_of};
use crate::shard::ShardHandle;
use rnic_abi::control::{DeviceInfo, MAX_DESCRIPTORS};
use rnic_abi::os::{Credentials, EventFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// The daemon as its sessions see it.
pub struct Service {
    /// The device.
    pub device: DeviceInfo,
    /// Its network.
    pub network: Arc<dyn Paths>,
    /// What makes it a member of multicast groups.
    pub groups: Arc<dyn Groups>,
    /// The engine that serves the sessions of this process.
    pub engine: ShardHandle,
    /// What there is to see of it and of others.
    pub engines: Arc<dyn Engines>,
    /// Its connection manager.
    pub connections: Arc<dyn Connections>,
    /// What starts engines in programs, where that is possible.
    pub functions: Option<Arc<dyn Functions>>,
    /// Other engines of this process that programs may have instead, if there are any.
    pub more: Option<Arc<dyn MoreEngines>>,
    /// What each user has of the device.
    pub ledger: Arc<dyn Ledger>,
    /// Where the memory of its clients is.
    pub memory: ClientMemory,
    /// The user of the daemon.
    pub owner: u32,
    /// The daemon's process.
    pub pid: u32,
    /// Packet I/O in words.
    pub io: String,
    /// Vendor whose behaviour the device follows where implementations differ.
    pub profile: Profile,
    /// The clients that are connected.
    pub registry: Registry,
    /// When the daemon started.
    pub started: Instant,
    /// Readable once the daemon stops: sessions end then.
    pub stop: EventFd,
}

/// Where the memory of clients is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientMemory {
    /// In their processes.
    OfProcesses,
    /// In this process, which is their program.
    Own,
}

impl ClientMemory {
    /// That of the client with this process, which the pidfd holds, if it can be seen.
    pub(super) fn of(self, pid: u32, pidfd: &Arc<OwnedFd>) -> Option<Space> {
        match self {
            Self::OfProcesses => Process::of_client(pid, Arc::clone(pidfd)).map(Space::Process),
            Self::Own => Own::new().map(Space::Own),
        }
    }

    /// Whether this thread may reach an address, and whether there is memory.
    ///
    /// # Errors
    /// `EPERM`, `EFAULT` or `ESRCH`.
    pub(super) fn probe(self, pid: u32, addr: u64) -> std::io::Result<()> {
        match self {
            Self::OfProcesses => probe(pid, addr),
            Self::Own => probe_own(addr),
        }
    }
}

impl Service {
    /// The daemon is about to end. What its clients see of their queues stays as it is then: they
    /// poll completions after its end.
    pub(super) fn is_stopping(&self) -> bool {
        let mut stop = [PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        poll(&mut stop, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// A session's place among all; dropped, the session is over.
pub(super) struct Place {
    service: Arc<Service>,
    /// The session's number.
    pub session: u32,
    _charges: [Charge; 3],
}

impl Place {
    /// A place for a session of `peer`.
    ///
    /// # Errors
    /// When this user or the daemon has too many.
    pub(super) fn take(service: &Arc<Service>, peer: Credentials) -> Result<Self, Refused> {
        let account = service.account(peer.uid);
        let charges = account.take_all([
            (Resource::Sessions, 1),
            (Resource::Descriptors, SESSION_DESCRIPTORS),
            (Resource::Mappings, SESSION_MAPPINGS),
        ])?;
        let session = service.registry.enter(peer);
        Ok(Self { service: Arc::clone(service), session, _charges: charges })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.service.registry.leave(self.session);
    }
}

impl Service {
    /// The account of a user.
    pub(super) fn account(&self, user: u32) -> Account {
        Account::new(Arc::clone(&self.ledger), user)
    }

    /// For `rnic status`: the sessions from a number on, in their order, [`SESSIONS`] at most.
    /// Those of the daemon's own process come first.
    pub(super) fn sessions(&self, from: u32) -> Vec<report::Session> {
        let mut sessions = self.registry.report(from);
        if sessions.len() < SESSIONS {
            sessions.extend(self.engines.sessions(from));
            sessions.truncate(SESSIONS);
        }
        sessions
    }

    /// For `rnic status`: the daemon in one object, without its sessions, which may be many.
    pub(super) fn report(&self) -> report::Status {
        let overview = self.engines.overview();
        let port = self.network.port();
        let gids = self.network.gids().into_iter().map(|entry| report::Gid {
            index: entry.index,
            address: std::net::Ipv6Addr::from(entry.gid).to_canonical().to_string(),
        });
        report::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: self.pid,
            uptime_seconds: self.started.elapsed().as_secs(),
            device: self.device.name.clone(),
            netdev: self.device.netdev.clone(),
            io: self.io.clone(),
            profile: name_of(&self.profile),
            port: report::Port {
                active: port.active,
                active_mtu: 128u32 << port.active_mtu,
                netdev_mtu: port.netdev_mtu,
                speed_mbps: port.speed_mbps,
            },
            gids: gids.collect(),
            users: overview.users,
            totals: overview.totals,
        }
    }
}

/// Connection, pidfd, and what comes or goes with a message.
const SESSION_DESCRIPTORS: u64 = 2 + MAX_DESCRIPTORS as u64;
/// Its thread's stack, signal stack and their guards.
const SESSION_MAPPINGS: u64 = 4;
