//! The host's network as the device sees it: its interface, its addresses, the way to its peers.
//!
//! A [`Network`] belongs to the control plane. A thread of it follows the kernel's notifications
//! and reports a [`Change`]; what the data path needs (next hops) is in a [`HopTable`], which is
//! read without waiting.

mod claims;
mod gids;
mod hops;
mod interface;
mod monitor;
mod neighbour;
mod netlink;
mod resolve;

use gids::{GID_TABLE_LEN, GidTable, Served};
use interface::InterfaceAddress;
use monitor::Monitor;
use netlink::Netlink;
use rnic_abi::control::{GidEntry, PortInfo};
use rnic_core::command::PortState;
use roce_wire::{Gid, MacAddr, PathMtu};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use claims::Claims;
#[cfg(test)]
use hops::KERNEL;
use hops::MAX_OWN;
pub use hops::{Hold, Hop, HopTable};
pub use interface::{Incarnation, Interface};

/// Which interface and addresses the device has.
#[derive(Clone, Debug, Default)]
pub struct NetConfig {
    /// Interface to sit on; without one, that of the first address, else `lo`.
    pub netdev: Option<String>,
    /// Serve exactly these; empty: those of the interface.
    pub addresses: Vec<IpAddr>,
}

/// Why the network cannot be used; the text says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetError(String);

impl NetError {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl From<io::Error> for NetError {
    fn from(error: io::Error) -> Self {
        Self(format!("asking the kernel about interfaces (netlink): {error}"))
    }
}

/// How the network is after a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// For the engine.
    pub port: PortState,
    /// Own addresses, for the wire.
    pub addresses: Vec<IpAddr>,
    /// Interface MTU, bytes, for the wire.
    pub mtu: u32,
    /// The interface: another one than before when it was made anew, or was away for a while. What
    /// was opened on the old one is dead.
    pub interface: Incarnation,
}

/// The network of one device. See the [module](self).
pub struct Network {
    shared: Arc<Shared>,
    /// Ends with this value.
    _monitor: Monitor,
}

struct Shared {
    config: NetConfig,
    hops: HopTable,
    /// The kernel routes what we send and its UDP port is the source port.
    kernel_sends: AtomicBool,
    state: Mutex<State>,
}

struct State {
    interface: Interface,
    /// How often it was made anew, or went and came back.
    generation: u64,
    /// It is there now, as far as is known.
    is_there: bool,
    /// It went since it was looked for last.
    has_gone: bool,
    /// Of its link, Mb/s; 0 unknown.
    speed_mbps: u32,
    /// VLAN interfaces above it.
    vlans: HashMap<u32, Interface>,
    /// The last index that the interface of each VLAN id had.
    vlan_indices: HashMap<u16, u32>,
    gids: GidTable,
    warnings: Vec<String>,
}

impl Network {
    /// Looks around, then follows changes; `on_change` is called on a thread of its own.
    ///
    /// # Errors
    /// [`NetError`]: no such interface, not an address of this host.
    pub fn start(
        config: NetConfig,
        on_change: Box<dyn Fn(Change) + Send>,
    ) -> Result<Arc<Network>, NetError> {
        // Listen first: what changes while we look is then looked at again.
        let listener = Monitor::listen()?;
        let mut netlink = Netlink::open()?;
        let (interfaces, addresses) =
            (interface::interfaces(&mut netlink)?, interface::addresses(&mut netlink)?);
        check_addresses(&config, &addresses, &interfaces)?;
        let interface = main_interface(&config, &interfaces, &addresses)?.clone();
        let shared = Arc::new(Shared {
            config,
            hops: HopTable::default(),
            kernel_sends: AtomicBool::new(false),
            state: Mutex::new(State::new(interface)),
        });
        shared.take_over(interfaces, &addresses);
        if shared.lock().gids.entries().next().is_none() {
            tracing::warn!(
                "interface {} has no address yet: the port is down until it gets one",
                shared.lock().interface.name
            );
        }
        let monitor = Monitor::start(listener, Arc::clone(&shared), on_change)?;
        Ok(Arc::new(Network { shared, _monitor: monitor }))
    }

    /// Used entries of the GID table.
    pub fn gids(&self) -> Vec<GidEntry> {
        let state = self.shared.lock();
        let entry = |(index, served): (usize, Served)| GidEntry {
            index: index as u32,
            gid: Gid::from_ip(served.ip).0,
            ifindex: served.ifindex,
        };
        state.gids.entries().map(entry).collect()
    }

    /// What the engine and the wire are to start with.
    pub fn now(&self) -> Change {
        self.shared.lock().change(false)
    }

    /// State of the port: down, too, while the wire of this process has no way to the network.
    pub fn port(&self) -> PortInfo {
        let port = self.port_of_interface();
        PortInfo { active: port.active && self.shared.hops.wire_retry().is_none(), ..port }
    }

    /// State of the port for an engine that has a way of its own.
    pub fn port_of_interface(&self) -> PortInfo {
        self.shared.lock().port()
    }

    /// The interface the device sits on.
    pub fn interface(&self) -> Interface {
        self.shared.lock().interface.clone()
    }

    /// Whether the user named the interface.
    pub fn netdev_was_given(&self) -> bool {
        self.shared.config.netdev.is_some()
    }

    /// The next hops, for wires.
    pub fn hops(&self) -> HopTable {
        self.shared.hops.clone()
    }

    /// Own addresses.
    pub fn local_addresses(&self) -> Vec<IpAddr> {
        self.shared.lock().addresses()
    }

    /// From now on paths are for a wire that sends through the kernel's UDP sockets: their source
    /// port is the RoCE port, and the kernel routes.
    pub fn set_kernel_sends(&self, yes: bool) {
        self.shared.kernel_sends.store(yes, Ordering::Release);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel again and tells what became different.
    fn refresh(&self, netlink: &mut Netlink) -> io::Result<Option<Change>> {
        let interfaces = interface::interfaces(netlink)?;
        let addresses = interface::addresses(netlink)?;
        Ok(self.take_over(interfaces, &addresses))
    }

    /// The same, when the kernel said this.
    fn take_over(
        &self,
        interfaces: Vec<Interface>,
        addresses: &[InterfaceAddress],
    ) -> Option<Change> {
        let own = self.lock().find_own(&interfaces).cloned();
        // Without the lock: a driver may ask its firmware, while sessions ask for the network. Of
        // this one only: a host may have thousands of interfaces, and each takes two files.
        let speed_mbps = own.as_ref().map_or(0, interface::speed);
        let mut state = self.lock();
        let before = state.change(false);
        state.speed_mbps = speed_mbps;
        let gids_changed = state.follow(&self.config, &self.hops, own, interfaces, addresses);
        self.hops.set_own(&state.macs());
        self.hops.set_vlans(state.vlans.values().filter_map(|vlan| Some(vlan.vlan?.1)));
        self.hops.move_sources(&state.own().map(|own| (own.index, own.mac)).collect());
        let after = state.change(gids_changed);
        (before != after).then_some(after)
    }
}

impl State {
    /// On this interface, before anything else is known.
    fn new(interface: Interface) -> Self {
        let (vlans, vlan_indices) = (HashMap::new(), HashMap::new());
        let (gids, warnings) = (GidTable::new(), Vec::new());
        Self {
            interface,
            generation: 0,
            is_there: true,
            has_gone: false,
            speed_mbps: 0,
            vlans,
            vlan_indices,
            gids,
            warnings,
        }
    }

    /// The kernel says that the interface of this index is no more. When it is looked for, it may
    /// be there again, as if nothing had been.
    fn is_gone(&mut self, index: u32) {
        self.has_gone |= self.interface.index == index;
    }

    /// The device's interface as it is now, if it is there.
    fn find_own<'a>(&self, interfaces: &'a [Interface]) -> Option<&'a Interface> {
        let own = interfaces.iter().find(|i| i.index == self.interface.index);
        // An interface that was made anew under its name takes the place of the one that went.
        own.or_else(|| interfaces.iter().find(|i| i.name == self.interface.name))
    }

    /// Takes over what the kernel said; tells whether the GID table changed.
    fn follow(
        &mut self,
        config: &NetConfig,
        hops: &HopTable,
        own: Option<Interface>,
        interfaces: Vec<Interface>,
        addresses: &[InterfaceAddress],
    ) -> bool {
        let before = self.interface.index;
        let was_there = std::mem::replace(&mut self.is_there, own.is_some());
        let was_away = std::mem::take(&mut self.has_gone) || !was_there;
        match own {
            Some(own) => self.interface = own,
            None => self.interface.up = false,
        }
        let is_another = self.is_there && (was_away || self.interface.index != before);
        self.generation += u64::from(is_another);
        let index = self.interface.index;
        self.vlans = interfaces
            .into_iter()
            .filter(|i| i.vlan.is_some_and(|(below, _)| below == index))
            .map(|i| (i.index, i))
            .collect();
        if index != before {
            tracing::warn!("interface {} was made anew", self.interface.name);
        } else if is_another {
            tracing::warn!("interface {} was away and is back", self.interface.name);
        }
        let mut gids_changed = false;
        for (from, to) in self.made_anew(before) {
            hops.rename(from, to);
            gids_changed |= self.gids.rename(from, to);
        }
        self.warn();
        let served = self.served(config, addresses);
        self.gids.update(&served) || gids_changed
    }

    /// Own interfaces that have another index than before, when that of the device was `before`:
    /// (old index, new index). A VLAN is the same one by its id. VLANs come first: the device's
    /// interface may have got the index of one that went.
    fn made_anew(&mut self, before: u32) -> Vec<(u32, u32)> {
        let mut all = Vec::new();
        for vlan in self.vlans.values() {
            let Some((_, id)) = vlan.vlan else { continue };
            let last = self.vlan_indices.insert(id, vlan.index).unwrap_or(vlan.index);
            // Two may have one id, for they may have different protocols.
            // And what has the index of a VLAN that went long ago may be the device's interface.
            if last != before && !self.vlans.contains_key(&last) {
                all.push((last, vlan.index));
            }
        }
        all.push((before, self.interface.index));
        all.retain(|(from, to)| from != to);
        all
    }

    /// Says once what there is to say about the MTU and the Ethernet addresses.
    fn warn(&mut self) {
        let (_, of_mtu) = interface::path_mtu(&self.interface);
        let macs = self.macs().len();
        let of_macs = (macs > MAX_OWN).then(|| {
            format!(
                "the VLANs on {} have {macs} Ethernet addresses with its own, and frames to the \
                 first {MAX_OWN} only are received: give the others the address of {0}",
                self.interface.name
            )
        });
        let warnings: Vec<String> = of_mtu.into_iter().chain(of_macs).collect();
        for text in warnings.iter().filter(|text| !self.warnings.contains(text)) {
            tracing::warn!("{text}");
        }
        self.warnings = warnings;
    }

    /// The addresses to serve, of those that exist.
    fn served(&self, config: &NetConfig, addresses: &[InterfaceAddress]) -> Vec<Served> {
        let served = |a: &InterfaceAddress| Served { ip: a.ip, ifindex: a.ifindex };
        let own = self.interface.index;
        if !config.addresses.is_empty() {
            let owner = |ip: &IpAddr| {
                let owners = addresses.iter().filter(|a| has(a, *ip));
                let best = owners.min_by_key(|a| (a.ifindex != own, a.ip != *ip))?;
                Some(Served { ip: *ip, ifindex: best.ifindex })
            };
            return config.addresses.iter().filter_map(owner).collect();
        }
        if config.netdev.is_none() {
            let usual = |a: &&InterfaceAddress| a.ifindex == own && is_usual_loopback(a.ip);
            return addresses.iter().filter(usual).map(served).collect();
        }
        let ours = |a: &&InterfaceAddress| a.ifindex == own || self.vlans.contains_key(&a.ifindex);
        let mut all: Vec<_> = addresses.iter().filter(ours).map(served).collect();
        all.sort_by_key(|served| served.ifindex != own);
        all
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.gids.entries().map(|(_, served)| served.ip).collect()
    }

    /// The interface and those of VLANs above it, always in the same order.
    fn own(&self) -> impl Iterator<Item = &Interface> {
        let mut vlans: Vec<_> = self.vlans.values().collect();
        vlans.sort_unstable_by_key(|vlan| vlan.index);
        std::iter::once(&self.interface).chain(vlans)
    }

    /// Own Ethernet addresses, the interface's first.
    fn macs(&self) -> Vec<MacAddr> {
        let mut macs = Vec::new();
        for interface in self.own() {
            if !macs.contains(&interface.mac) {
                macs.push(interface.mac);
            }
        }
        macs
    }

    fn change(&self, gids_changed: bool) -> Change {
        let PortInfo { active, active_mtu, .. } = self.port();
        Change {
            port: PortState { active, active_mtu, gids_changed },
            addresses: self.addresses(),
            mtu: self.interface.mtu,
            interface: Incarnation { index: self.interface.index, generation: self.generation },
        }
    }

    fn port(&self) -> PortInfo {
        let (path_mtu, _) = interface::path_mtu(&self.interface);
        let fits = PathMtu::for_link_mtu(self.interface.mtu).is_some();
        PortInfo {
            active: self.interface.up && fits && self.gids.entries().next().is_some(),
            max_mtu: PathMtu::Mtu4096.code(),
            active_mtu: path_mtu.code(),
            netdev_mtu: self.interface.mtu,
            gid_table_len: GID_TABLE_LEN as u32,
            speed_mbps: self.speed_mbps,
        }
    }
}

/// 127.0.0.1 or ::1, and not other addresses that were added to `lo`.
fn is_usual_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4 == std::net::Ipv4Addr::LOCALHOST,
        IpAddr::V6(v6) => v6 == std::net::Ipv6Addr::LOCALHOST,
    }
}

/// The interface has the address, or is `lo` and has the whole prefix (127.0.0.0/8).
fn has(address: &InterfaceAddress, ip: IpAddr) -> bool {
    let whole_prefix = match (address.ip, ip) {
        (IpAddr::V4(own), IpAddr::V4(ip)) if own.is_loopback() => {
            let mask = u32::MAX.checked_shl(32 - u32::from(address.prefix)).unwrap_or(0);
            own.to_bits() & mask == ip.to_bits() & mask
        }
        _ => false,
    };
    address.ip == ip || whole_prefix
}

fn check_addresses(
    config: &NetConfig,
    addresses: &[InterfaceAddress],
    interfaces: &[Interface],
) -> Result<(), NetError> {
    let missing =
        config.addresses.iter().find(|ip| !addresses.iter().any(|address| has(address, **ip)));
    let Some(ip) = missing else { return Ok(()) };
    let name = |index| interfaces.iter().find(|i| i.index == index).map_or("?", |i| &i.name);
    let all: Vec<_> = addresses.iter().map(|a| format!("{} ({})", a.ip, name(a.ifindex))).collect();
    Err(NetError::new(format!(
        "{ip} is not an address of this network namespace; it has {}",
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    )))
}

/// The interface named, else the owner of the first address, else loopback.
fn main_interface<'a>(
    config: &NetConfig,
    interfaces: &'a [Interface],
    addresses: &[InterfaceAddress],
) -> Result<&'a Interface, NetError> {
    if let Some(name) = &config.netdev {
        return interface::find(interfaces, name);
    }
    let owner = config.addresses.first().and_then(|ip| {
        let address =
            addresses.iter().filter(|a| has(a, *ip)).min_by_key(|address| address.ip != *ip)?;
        interfaces.iter().find(|i| i.index == address.ifindex)
    });
    owner.or_else(|| interfaces.iter().find(|i| i.loopback)).ok_or_else(|| {
        NetError::new("this network namespace has no loopback interface; name one with --netdev")
    })
}

#[cfg(test)]
mod tests;
