//! What all sessions share, and a session's place in it.

use super::accounts::{Accounts, Charge};
use super::registry::Registry;
use crate::config::{Profile, Resource, name_of};
use crate::net::Network;
use crate::refusal::Refused;
use crate::report::{self, Totals};
use crate::shard::ShardSet;
use rnic_abi::control::{DeviceInfo, MAX_DESCRIPTORS};
use rnic_abi::os::{Credentials, EventFd};
use std::sync::Arc;
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
