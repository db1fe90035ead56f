//! From the address vector of an application to a path: source, destination, next hop.

use super::netlink::Netlink;
use super::{Network, Situation};
use crate::config::Io;
use crate::refusal::{Refused, refuse};
use crate::wire::hops::{Hop, KERNEL, LOCAL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rnic_abi::verbs::AhAttr;
use rnic_core::command::Path;
use rnic_core::ports::HopId;
use roce_wire::flow::udp_source_port;
use roce_wire::{Flow, MacAddr, ROCE_PORT};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

impl Network {
    /// Resolves an address vector. May take as long as the neighbour takes to answer.
    ///
    /// # Errors
    /// EINVAL for an impossible vector, EHOSTUNREACH when there is no way to the destination.
    pub(crate) fn resolve(&self, attr: &AhAttr) -> Result<Path, Refused> {
        let now = self.now();
        let (src, dst) = endpoints(attr, &now)?;
        let hop = self.next_hop(src, dst, &now)?;
        let through_kernel = self.place.io == Io::Udp;
        let sport = match attr.flow_label {
            _ if through_kernel => ROCE_PORT,
            0 => 0,
            label => udp_source_port(label),
        };
        let hop_limit = match attr.hop_limit {
            0 => Flow::DEFAULT_HOP_LIMIT,
            limit => limit,
        };
        // A kernel socket sends no flow label of ours.
        let flow_label = if through_kernel { 0 } else { attr.flow_label & 0xf_ffff };
        let flow = Flow { src, dst, sport, tos: attr.traffic_class, hop_limit, flow_label };
        Ok(Path { attr: *attr, flow, hop })
    }

    fn next_hop(&self, src: IpAddr, dst: IpAddr, now: &Situation) -> Result<HopId, Refused> {
        if now.gids.contains(dst) {
            return Ok(LOCAL);
        }
        match self.place.io {
            Io::Loopback => Err(unreachable(format!(
                "{dst} is not an address of this device, and a loopback device reaches no other"
            ))),
            Io::Udp => kernel_route(src, dst, now.ifindex).map(|()| KERNEL),
            _ => {
                let neighbour = route(src, dst, now.ifindex)?;
                let mac = neighbour_mac(src, dst, neighbour, now.ifindex)?;
                self.hops.learn(neighbour, Hop { mac, vlan: None }).ok_or_else(|| {
                    refuse(libc::ENOMEM, "too many neighbours: the table of next hops is full")
                })
            }
        }
    }
}

/// Our and the peer's address.
fn endpoints(attr: &AhAttr, now: &Situation) -> Result<(IpAddr, IpAddr), Refused> {
    if !attr.is_global {
        let text = "RoCE needs a global route: set ah_attr.is_global = 1 and fill ah_attr.grh";
        return Err(refuse(libc::EINVAL, text));
    }
    let dst = match Ipv6Addr::from(attr.dgid) {
        unset if unset.is_unspecified() => {
            return Err(refuse(libc::EINVAL, "the destination GID is all zero"));
        }
        mapped => mapped.to_canonical(),
    };
    let index = u32::from(attr.sgid_index);
    let src = now.gids.get(index).ok_or_else(|| {
        let used: Vec<_> = now.gids.iter().map(|(i, ip)| format!("{i} ({ip})")).collect();
        let used = if used.is_empty() { "none".to_owned() } else { used.join(", ") };
        refuse(libc::EINVAL, format!("GID index {index} is not in use; in use: {used}"))
    })?;
    if src.is_ipv4() != dst.is_ipv4() {
        let text = format!(
            "GID index {index} is {src}, which cannot talk to {dst}: the address families differ"
        );
        return Err(refuse(libc::EINVAL, text));
    }
    Ok((src, dst))
}

fn unreachable(text: String) -> Refused {
    refuse(libc::EHOSTUNREACH, text)
}

fn socket_address(ip: IpAddr, port: u16, ifindex: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, ifindex).into()
        }
        _ => SocketAddr::new(ip, port),
    }
}

/// A socket of the kernel's that talks from `src` to a port of `dst` that nobody listens on.
fn probe_socket(src: IpAddr, dst: IpAddr, ifindex: u32) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(socket_address(src, 0, ifindex))?;
    socket.connect(socket_address(dst, DISCARD, ifindex))?;
    Ok(socket)
}

/// Whether the kernel has a route.
fn kernel_route(src: IpAddr, dst: IpAddr, ifindex: u32) -> Result<(), Refused> {
    probe_socket(src, dst, ifindex)
        .map(drop)
        .map_err(|error| unreachable(format!("no route from {src} to {dst}: {error}")))
}

/// The neighbour that packets to `dst` are handed to.
fn route(src: IpAddr, dst: IpAddr, ifindex: u32) -> Result<IpAddr, Refused> {
    let mut question = RouteMessage::default();
    let (family, bits) = match dst {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    question.header.address_family = family;
    question.header.destination_prefix_length = bits;
    question.header.source_prefix_length = bits;
    question.attributes.push(RouteAttribute::Destination(dst.into()));
    question.attributes.push(RouteAttribute::Source(src.into()));
    if matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        question.attributes.push(RouteAttribute::Oif(ifindex));
    }
    let answers = Netlink::new()
        .and_then(|mut netlink| netlink.ask(RouteNetlinkMessage::GetRoute(question), false))
        .map_err(|error| unreachable(format!("no route from {src} to {dst}: {error:#}")))?;
    let route = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    let route = route.ok_or_else(|| unreachable(format!("no route from {src} to {dst}")))?;
    if route.header.kind == RouteType::Local {
        return Err(unreachable(format!(
            "{dst} is an address of this host, but not of this device: add it to the device's \
             interface, or use a device of that address"
        )));
    }
    let mut neighbour = dst;
    for attribute in route.attributes {
        match attribute {
            RouteAttribute::Oif(index) if index != ifindex => {
                let other = xdp_io::netdev::name(index).unwrap_or_else(|_| index.to_string());
                return Err(unreachable(format!(
                    "the route to {dst} leaves through {other}, not through the device's \
                     interface; `ip route get {dst} from {src}` shows it"
                )));
            }
            RouteAttribute::Gateway(RouteAddress::Inet(v4)) => neighbour = v4.into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => neighbour = v6.into(),
            _ => {}
        }
    }
    Ok(neighbour)
}

/// Asks the kernel for the neighbour's Ethernet address, and makes it find out.
fn neighbour_mac(
    src: IpAddr,
    dst: IpAddr,
    neighbour: IpAddr,
    ifindex: u32,
) -> Result<MacAddr, Refused> {
    let ask = || -> anyhow::Result<Option<MacAddr>> {
        let mut question = NeighbourMessage::default();
        question.header.family = match neighbour {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        question.header.ifindex = ifindex;
        question.attributes.push(NeighbourAttribute::Destination(neighbour.into()));
        let question = RouteNetlinkMessage::GetNeighbour(question);
        let answers = Netlink::new()?.ask(question, false)?;
        Ok(answers.iter().find_map(|answer| understand(answer).map(|(_, mac)| mac)))
    };
    let started = Instant::now();
    let mut asked: Option<Instant> = None;
    loop {
        // A neighbour that was never asked for is an error, too: ENOENT.
        if let Ok(Some(mac)) = ask() {
            return Ok(mac);
        }
        if started.elapsed() > NEIGHBOUR_PATIENCE {
            return Err(unreachable(format!(
                "{neighbour} does not answer: is it up, and on the same link? \
                 `ip neighbour get {neighbour} dev ...` shows what the kernel knows"
            )));
        }
        if asked.is_none_or(|at| at.elapsed() > ASK_AGAIN) {
            let sent = probe_socket(src, dst, ifindex).and_then(|socket| socket.send(&[]));
            if let Err(error) = sent {
                tracing::debug!("asking for {neighbour}: {error}");
            }
            asked = Some(Instant::now());
        }
        std::thread::sleep(NEIGHBOUR_POLL);
    }
}

/// Neighbour and Ethernet address, when the kernel says that they are good.
pub(super) fn understand(message: &RouteNetlinkMessage) -> Option<(IpAddr, MacAddr)> {
    let RouteNetlinkMessage::NewNeighbour(message) = message else { return None };
    let bad = [NeighbourState::Incomplete, NeighbourState::Failed, NeighbourState::None];
    if bad.contains(&message.header.state) {
        return None;
    }
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(MacAddr);
            }
            _ => {}
        }
    }
    Some((address?, mac?))
}

/// The kernel tries three times, one second apart.
const NEIGHBOUR_PATIENCE: Duration = Duration::from_millis(3500);
const ASK_AGAIN: Duration = Duration::from_secs(1);
const NEIGHBOUR_POLL: Duration = Duration::from_millis(2);
/// The discard service.
const DISCARD: u16 = 9;
