//! What the kernel knows about the network: interfaces, addresses, routes, neighbours.
//!
//! [`Network`] is the one picture of it that sessions ask and that the monitor thread keeps
//! fresh.

mod gids;
mod interface;
mod monitor;
mod netlink;
mod resolve;

use crate::config::Io;
use crate::wire::hops::HopTable;
use rnic_abi::control::{GidEntry, PortInfo};
use rnic_core::command::PortState;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

pub(crate) use gids::{GID_TABLE_LEN, GidTable};
pub(crate) use interface::Interface;
pub(crate) use monitor::{Change, Monitor};

/// What the device sits on.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Packet I/O in use.
    pub(crate) io: Io,
    /// The interface, when there is one.
    pub(crate) netdev: Option<String>,
    /// The addresses to serve; empty: whatever the interface has.
    pub(crate) addresses: Vec<IpAddr>,
}

/// How things are now.
#[derive(Clone, Debug)]
pub(crate) struct Situation {
    /// GIDs.
    pub(crate) gids: GidTable,
    /// Link up.
    pub(crate) up: bool,
    /// Interface MTU, bytes.
    pub(crate) mtu: u32,
    /// Mb/s, 0 unknown.
    pub(crate) speed: u32,
    /// Interface index, 0 without one.
    pub(crate) ifindex: u32,
}

impl Situation {
    /// Asks the kernel, and keeps the indices of the GIDs in `before`.
    ///
    /// # Errors
    /// When the interface is gone, or netlink fails.
    pub(crate) fn look(place: &Place, before: GidTable) -> anyhow::Result<Self> {
        let (interface, has) = interface::find(place)?;
        let mut gids = before;
        gids.update(&has);
        Ok(match interface {
            Some(Interface { index, mtu, up, speed, .. }) => {
                Self { gids, up, mtu, speed, ifindex: index }
            }
            None => Self { gids, up: true, mtu: LOOPBACK_MTU, speed: 0, ifindex: 0 },
        })
    }

    /// The state that the engine is told.
    pub(crate) fn port_state(&self, gids_changed: bool) -> PortState {
        PortState {
            active: self.up && self.gids.addresses().next().is_some(),
            active_mtu: path_mtu_code(self.mtu),
            gids_changed,
        }
    }
}

/// The device's network, shared by all threads.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) place: Place,
    pub(crate) hops: HopTable,
    now: Arc<RwLock<Situation>>,
}

impl Network {
    /// Starts from a first look.
    pub(crate) fn new(place: Place, situation: Situation) -> Self {
        Self { place, hops: HopTable::new(), now: Arc::new(RwLock::new(situation)) }
    }

    /// How things are.
    pub(crate) fn now(&self) -> Situation {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, situation: Situation) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = situation;
    }

    /// `ibv_query_port`.
    pub(crate) fn port(&self) -> PortInfo {
        let now = self.now();
        let state = now.port_state(false);
        PortInfo {
            active: state.active,
            max_mtu: MAX_PATH_MTU,
            active_mtu: state.active_mtu,
            netdev_mtu: now.mtu,
            gid_table_len: GID_TABLE_LEN,
            speed_mbps: now.speed,
        }
    }

    /// The used GIDs from index `start` on.
    pub(crate) fn gids(&self, start: u32) -> Vec<GidEntry> {
        let now = self.now();
        let entries = now.gids.iter().filter(|(index, _)| *index >= start);
        entries
            .map(|(index, address)| GidEntry { index, gid: gid(address), ifindex: now.ifindex })
            .collect()
    }
}

/// The GID of an address: IPv6 as it is, IPv4 mapped into it.
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The largest path MTU code that an interface carries, room for the longest headers included (as
/// Linux computes it: 40 GRH, 8 UDP, 12 BTH, 28 + 4 extended headers, 4 ICRC). At least 1.
pub(crate) fn path_mtu_code(mtu: u32) -> u8 {
    let room = mtu.saturating_sub(96);
    (1..=MAX_PATH_MTU).rev().find(|code| 128 << code <= room).unwrap_or(1)
}

/// Path MTU 4096.
const MAX_PATH_MTU: u8 = 5;
/// MTU of a device that is on no link.
const LOOPBACK_MTU: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_follows_the_interface() {
        let codes = [(68, 1), (600, 1), (1280, 3), (1500, 3), (2200, 4), (4191, 4), (4192, 5)];
        for (mtu, code) in codes {
            assert_eq!(path_mtu_code(mtu), code, "MTU {mtu}");
        }
        assert_eq!(path_mtu_code(65_536), 5);
    }
}
