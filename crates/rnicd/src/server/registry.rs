//! What all sessions share.

use super::accounts::{Accounts, Charge};
use crate::config::{Config, Profile, Resource, name_of};
use crate::dma::{slot_of, space_id};
use crate::net::Network;
use crate::refusal::Refused;
use crate::report::{self, Totals};
use crate::shard::ShardSet;
use anyhow::Context;
use rnic_abi::control::{DeviceInfo, MAX_DESCRIPTORS};
use rnic_abi::os::{Credentials, EventFd};
use rnic_core::SpaceId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The daemon as its sessions see it.
pub(crate) struct Service {
    /// The device.
    pub(crate) device: DeviceInfo,
    /// Its network.
    pub(crate) network: Arc<Network>,
    /// Its engines.
    pub(crate) shards: Arc<ShardSet>,
    /// What each user has of it.
    pub(crate) accounts: Arc<Accounts>,
    /// Packet I/O in words.
    pub(crate) io: String,
    /// Vendor whose behaviour the device follows where implementations differ.
    pub(crate) profile: Profile,
    /// The clients that are connected.
    pub(crate) registry: Registry,
    /// When the daemon started.
    pub(crate) started: Instant,
    /// Readable once the daemon stops: sessions end then.
    pub(crate) stop: EventFd,
}

/// Sessions and the numbers they use.
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    /// Written whenever a session ends.
    ended: EventFd,
}

#[derive(Default)]
struct Inner {
    clients: Numbers,
    spaces: Spaces,
    sessions: BTreeMap<u32, SessionInfo>,
    next_session: u32,
    opened_ever: u64,
}

/// A session, for display.
#[derive(Clone, Debug)]
pub(crate) struct SessionInfo {
    /// Client process.
    pub(crate) peer: Credentials,
    /// Its context, when it opened the device.
    pub(crate) client: Option<u32>,
}

/// Small numbers that are used again.
#[derive(Default)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// Numbers of address spaces, never used again.
#[derive(Default)]
struct Spaces {
    slots: Numbers,
    ever: u32,
}

impl Spaces {
    fn take(&mut self) -> SpaceId {
        self.ever = self.ever.wrapping_add(1);
        space_id(self.slots.take(), self.ever)
    }

    fn give(&mut self, space: SpaceId) {
        self.slots.free.push(slot_of(space));
    }
}

impl Registry {
    /// Without sessions.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { inner: Mutex::default(), ended: EventFd::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, peer: Credentials) -> u32 {
        let mut inner = self.lock();
        inner.next_session = inner.next_session.wrapping_add(1);
        let session = inner.next_session;
        inner.sessions.insert(session, SessionInfo { peer, client: None });
        session
    }

    fn leave(&self, session: u32) {
        self.lock().sessions.remove(&session);
        if let Err(error) = self.ended.wake() {
            tracing::error!("cannot tell that a session ended: {error}");
        }
    }

    /// Readable after a session ended.
    pub(crate) fn ended(&self) -> &EventFd {
        &self.ended
    }

    /// Sessions now, and contexts opened ever.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let inner = self.lock();
        (inner.sessions.len(), inner.opened_ever)
    }

    /// The clients of a user.
    pub(crate) fn clients_of(&self, uid: u32) -> BTreeSet<u32> {
        let inner = self.lock();
        let sessions = inner.sessions.values().filter(|session| session.peer.uid == uid);
        sessions.filter_map(|session| session.client).collect()
    }

    /// Numbers for a context of `session`: client and address space.
    pub(crate) fn open(&self, session: u32) -> (u32, SpaceId) {
        let mut inner = self.lock();
        let (client, space) = (inner.clients.take(), inner.spaces.take());
        inner.opened_ever += 1;
        if let Some(info) = inner.sessions.get_mut(&session) {
            info.client = Some(client);
        }
        (client, space)
    }

    /// The context is gone.
    pub(crate) fn close(&self, client: u32, space: SpaceId) {
        let mut inner = self.lock();
        inner.clients.free.push(client);
        inner.spaces.give(space);
    }

    /// A number for an address space that the daemon will map.
    pub(crate) fn take_space(&self) -> SpaceId {
        self.lock().spaces.take()
    }

    /// It is no longer used.
    pub(crate) fn give_space(&self, space: SpaceId) {
        self.lock().spaces.give(space);
    }

    /// For `rnic status`.
    pub(crate) fn report(&self) -> Vec<report::Session> {
        let inner = self.lock();
        let sessions = inner.sessions.iter().map(|(session, info)| report::Session {
            session: *session,
            pid: info.peer.pid,
            uid: info.peer.uid,
            client: info.client,
            command: command_of(info.peer.pid),
        });
        sessions.collect()
    }
}

/// A session's place among all; dropped, the session is over.
pub(crate) struct Place {
    service: Arc<Service>,
    /// The session's number.
    pub(crate) session: u32,
    _charges: [Charge; 3],
}

impl Place {
    /// A place for a session of `peer`.
    ///
    /// # Errors
    /// When this user or the daemon has too many.
    pub(crate) fn take(service: &Arc<Service>, peer: Credentials) -> Result<Self, Refused> {
        let account = service.accounts.of(peer.uid);
        let charges = [
            account.take(Resource::Sessions, 1)?,
            account.take(Resource::Descriptors, SESSION_DESCRIPTORS)?,
            account.take(Resource::Mappings, SESSION_MAPPINGS)?,
        ];
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
    /// For `rnic status`: the daemon in one object. `totals` is what the engine has.
    pub(crate) fn report(&self, totals: Totals) -> report::Status {
        let port = self.network.port();
        let gids = self.network.gids().into_iter().map(|entry| report::Gid {
            index: entry.index,
            address: std::net::Ipv6Addr::from(entry.gid).to_canonical().to_string(),
        });
        report::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
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
            sessions: self.registry.report(),
            totals,
        }
    }
}

/// Connection, pidfd, and what comes or goes with a message.
const SESSION_DESCRIPTORS: u64 = 2 + MAX_DESCRIPTORS as u64;
/// Its thread's stack, signal stack and their guards.
const SESSION_MAPPINGS: u64 = 4;

fn command_of(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// The group of the control socket.
pub(crate) fn socket_group(config: &Config) -> anyhow::Result<Option<u32>> {
    config.group.as_deref().map(group_id).transpose()
}

/// A group by its number or name.
fn group_id(name: &str) -> anyhow::Result<u32> {
    if let Ok(gid) = name.parse() {
        return Ok(gid);
    }
    // The C library asks wherever the host keeps its groups, which need not be /etc/group.
    let group = nix::unistd::Group::from_name(name).context("cannot look groups up (--group)")?;
    let gid = group.map(|group| group.gid.as_raw());
    gid.with_context(|| format!("there is no group {name:?}; `getent group` lists them (--group)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_number_or_a_name() {
        assert_eq!(group_id("4711").unwrap(), 4711);
        assert_eq!(group_id("root").unwrap(), 0);
        let error = group_id("no such group").unwrap_err().to_string();
        assert!(error.contains("\"no such group\""), "{error}");
    }
}
