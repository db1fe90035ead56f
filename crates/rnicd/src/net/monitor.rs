//! Follows changes of interface, addresses and neighbours.

use super::netlink::Netlink;
use super::{Network, Situation, resolve};
use anyhow::Result;
use netlink_packet_route::RouteNetlinkMessage;
use rnic_core::command::PortState;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// What engines and wires have to know about a change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The port's new state.
    pub(crate) port: PortState,
    /// All addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Interface MTU.
    pub(crate) mtu: u32,
}

/// See the [module](self).
pub(crate) struct Monitor {
    netlink: Netlink,
    network: Network,
}

impl Monitor {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the kernel does not let us.
    pub(crate) fn new(network: Network) -> Result<Self> {
        Ok(Self { netlink: Netlink::listener()?, network })
    }

    /// Reads what was announced; `Some` when engines have to know.
    pub(crate) fn read(&mut self) -> Option<Change> {
        let announced = self.netlink.announced();
        let mut look = announced.is_none();
        for message in announced.iter().flatten() {
            match message {
                RouteNetlinkMessage::NewNeighbour(_) => {
                    if let Some((neighbour, mac)) = resolve::understand(message) {
                        self.network.hops.refresh(neighbour, mac);
                    }
                }
                RouteNetlinkMessage::NewLink(_)
                | RouteNetlinkMessage::DelLink(_)
                | RouteNetlinkMessage::NewAddress(_)
                | RouteNetlinkMessage::DelAddress(_) => look = true,
                _ => {}
            }
        }
        if look { self.look() } else { None }
    }

    fn look(&self) -> Option<Change> {
        let before = self.network.now();
        let now = match Situation::look(&self.network.place, before.gids.clone()) {
            Ok(now) => now,
            // The interface (or an address asked for by name) is gone.
            Err(error) => {
                if before.up {
                    tracing::warn!("the port is down: {error:#}");
                }
                Situation { up: false, ..before.clone() }
            }
        };
        let gids_changed = now.gids != before.gids;
        let port = now.port_state(gids_changed);
        let old = before.port_state(false);
        let same = (old.active, old.active_mtu) == (port.active, port.active_mtu);
        let mtu = now.mtu;
        let addresses = now.gids.addresses().collect();
        let changed = gids_changed || !same || mtu != before.mtu;
        self.network.set(now);
        if !changed {
            return None;
        }
        tracing::info!(
            "port {}, MTU {mtu}, addresses {addresses:?}",
            if port.active { "active" } else { "down" }
        );
        Some(Change { port, addresses, mtu })
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}
