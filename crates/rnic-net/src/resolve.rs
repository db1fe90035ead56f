//! From an address handle to a path: route, neighbour, next hop.

use super::gids::Served;
use super::hops::{Hold, Hop, HopKey, KERNEL};
use super::neighbour::{self, Known};
use super::netlink::{self, Netlink, RTM_GETROUTE, RTM_NEWROUTE, Request, u32_at};
use super::{Interface, Network, interface};
use rnic_abi::control::Refusal;
use rnic_abi::verbs::AhAttr;
use rnic_core::command::Path;
use rnic_core::ports::HopId;
use roce_wire::flow::udp_source_port;
use roce_wire::{Flow, Gid, MacAddr, ROCE_PORT, VlanTag};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

const RTMSG: usize = 12;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

/// The kernel asks three times, a second apart, before it gives a neighbour up.
const PATIENCE: Duration = Duration::from_millis(3300);
const FIRST_LOOK: Duration = Duration::from_micros(500);
const LONGEST_LOOK: Duration = Duration::from_millis(20);

/// The kernel's way to a destination.
struct Route {
    kind: u8,
    ifindex: u32,
    gateway: Option<IpAddr>,
}

impl Network {
    /// Finds the way to the destination of an address handle, which lasts as long as it is held.
    /// May wait up to about 3 s for the neighbour's answer. A group has none to wait for: it is on
    /// the network of the source address.
    ///
    /// # Errors
    /// EINVAL for an address handle that is invalid, ENETUNREACH without a route, EHOSTUNREACH when
    /// the neighbour does not answer, ETIMEDOUT when the kernel does not either, ENOMEM when there
    /// are too many neighbours.
    pub fn resolve(&self, ah: &AhAttr) -> Result<(Path, Hold), Refusal> {
        let kernel_sends = self.shared.kernel_sends.load(Ordering::Acquire);
        self.resolve_for(ah, kernel_sends.then_some(ROCE_PORT))
    }

    /// The same for a sender that uses UDP sockets of this port, whatever the device itself uses.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn resolve_for_sockets(&self, ah: &AhAttr, port: u16) -> Result<(Path, Hold), Refusal> {
        self.resolve_for(ah, Some(port))
    }

    /// With `sockets` the kernel sends, from this port.
    fn resolve_for(&self, ah: &AhAttr, sockets: Option<u16>) -> Result<(Path, Hold), Refusal> {
        let kernel_sends = sockets.is_some();
        let (source, dst) = self.endpoints(ah)?;
        let is_local = self.local_addresses().contains(&dst);
        let sport = match (sockets, ah.flow_label) {
            // The ICRC covers it, and the kernel knows no other.
            (Some(port), _) => port,
            // Other shards of this host are reached through the kernel.
            _ if is_local || dst.is_multicast() => ROCE_PORT,
            (None, 0) => 0,
            (None, label) => udp_source_port(label),
        };
        let hop_limit = if ah.hop_limit == 0 { Flow::DEFAULT_HOP_LIMIT } else { ah.hop_limit };
        let flow = Flow {
            src: source.ip,
            dst,
            sport,
            tos: ah.traffic_class,
            hop_limit,
            flow_label: ah.flow_label,
            df: true,
        };
        let (hop, hold) = match is_local {
            true => (HopId::LOCAL, Hold::nothing()),
            false => self.next_hop(source, dst, ah.sl, kernel_sends)?,
        };
        Ok((Path { attr: *ah, flow, hop }, hold))
    }

    fn endpoints(&self, ah: &AhAttr) -> Result<(Served, IpAddr), Refusal> {
        let gid = Gid(ah.dgid);
        if !ah.is_global {
            return Err(invalid("RoCE needs a global route: set is_global and the GRH".into()));
        }
        if gid.is_zero() {
            return Err(invalid("the destination GID is zero".into()));
        }
        let dst = gid.to_ip();
        let source = self.shared.lock().gids.get(usize::from(ah.sgid_index)).ok_or_else(|| {
            invalid(format!(
                "source GID index {} is empty; `rnic devices` lists the GIDs",
                ah.sgid_index
            ))
        })?;
        if dst.is_ipv4() != source.ip.is_ipv4() {
            return Err(invalid(format!(
                "source GID index {} is {}, which cannot talk to {dst}; choose an index of the \
                 same address family",
                ah.sgid_index, source.ip
            )));
        }
        Ok((source, dst))
    }

    fn next_hop(
        &self,
        source: Served,
        dst: IpAddr,
        sl: u8,
        kernel_sends: bool,
    ) -> Result<(HopId, Hold), Refusal> {
        let by_kernel = (KERNEL, Hold::nothing());
        let mut netlink = Netlink::open().map_err(|error| failed("opening netlink", &error))?;
        let route = match dst.is_multicast() {
            // Routes to groups are those of routers: a host sends to its own network.
            true => Route { kind: RTN_UNICAST, ifindex: source.ifindex, gateway: None },
            false => self.route(&mut netlink, source, dst, kernel_sends)?,
        };
        if route.kind == RTN_LOCAL {
            return if kernel_sends { Ok(by_kernel) } else { Err(on_this_host(dst)) };
        }
        let interface = self.interface_of(&mut netlink, route.ifindex)?;
        let own = self.interface();
        let below = interface.vlan.filter(|(below, _)| *below == own.index);
        if !kernel_sends && interface.index != own.index && below.is_none() {
            return Err(refusal(
                libc::ENETUNREACH,
                format!(
                    "the route to {dst} leaves through {}, not through {}; change it with `ip \
                     route`, or use --io udp",
                    interface.name, own.name
                ),
            ));
        }
        let neighbour = route.gateway.unwrap_or(dst);
        let dst_mac = match (interface.has_neighbours, kernel_sends) {
            (true, _) if dst.is_multicast() => MacAddr::of_group(dst),
            (true, _) => find(&mut netlink, source.ip, neighbour, &interface)?,
            (false, true) => return Ok(by_kernel),
            (false, false) => MacAddr::default(),
        };
        if kernel_sends {
            return Ok(by_kernel);
        }
        let vlan = below.map(|(_, id)| VlanTag::new(sl & 7, id));
        let key = HopKey {
            neighbour,
            ifindex: interface.index,
            priority: vlan.map_or(0, VlanTag::priority),
        };
        let hop = Hop { dst_mac, src_mac: interface.mac, vlan };
        self.shared.hops.learn(key, hop).ok_or_else(|| {
            refusal(libc::ENOMEM, "this device already talks to 16,382 neighbours".into())
        })
    }

    /// The kernel's route; where that is not through our interface, the one through it.
    fn route(
        &self,
        netlink: &mut Netlink,
        source: Served,
        dst: IpAddr,
        kernel_sends: bool,
    ) -> Result<Route, Refusal> {
        let link_local = matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let unbound = (!link_local).then(|| ask_route(netlink, source.ip, dst, None));
        let route = match unbound {
            Some(Ok(route)) if kernel_sends || route.ifindex == source.ifindex => Ok(route),
            Some(Ok(route)) if route.kind == RTN_LOCAL => Ok(route),
            Some(Err(error)) => Err(error),
            _ => ask_route(netlink, source.ip, dst, Some(source.ifindex)),
        };
        let route = route.map_err(|error| no_route(source.ip, dst, &error))?;
        match route.kind {
            RTN_UNICAST | RTN_LOCAL => Ok(route),
            _ => Err(no_route(source.ip, dst, &io::Error::from_raw_os_error(libc::ENETUNREACH))),
        }
    }

    fn interface_of(&self, netlink: &mut Netlink, index: u32) -> Result<Interface, Refusal> {
        let state = self.shared.lock();
        let own = Some(&state.interface).filter(|interface| interface.index == index);
        if let Some(known) = own.or_else(|| state.vlans.get(&index)) {
            return Ok(known.clone());
        }
        drop(state);
        let all =
            interface::interfaces(netlink).map_err(|error| failed("listing interfaces", &error))?;
        all.into_iter().find(|interface| interface.index == index).ok_or_else(|| {
            refusal(libc::ENETUNREACH, format!("interface {index} of the route has gone"))
        })
    }
}

fn ask_route(
    netlink: &mut Netlink,
    src: IpAddr,
    dst: IpAddr,
    through: Option<u32>,
) -> io::Result<Route> {
    let mut header = [0; RTMSG];
    let bits = if dst.is_ipv4() { 32 } else { 128 };
    header[..3].copy_from_slice(&[netlink::family(dst), bits, bits]);
    let mut request =
        Request::new(RTM_GETROUTE, 0, &header).address(RTA_DST, dst).address(RTA_SRC, src);
    if let Some(index) = through {
        request = request.attribute(RTA_OIF, &index.to_ne_bytes());
    }
    let mut route = None;
    netlink.ask(request, |message| {
        let Some(header) = message.header::<RTMSG>() else { return };
        if message.kind != RTM_NEWROUTE {
            return;
        }
        let mut found = Route { kind: header[7], ifindex: 0, gateway: None };
        for (kind, value) in message.attributes(RTMSG) {
            match kind {
                RTA_OIF => found.ifindex = u32_at(value, 0).unwrap_or(0),
                RTA_GATEWAY => found.gateway = netlink::ip(value),
                // struct rtvia: address family, then the address.
                RTA_VIA => found.gateway = value.get(2..).and_then(netlink::ip),
                _ => {}
            }
        }
        route = Some(found);
    })?;
    route.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
}

/// Waits until the kernel knows the neighbour.
fn find(
    netlink: &mut Netlink,
    source: IpAddr,
    neighbour: IpAddr,
    interface: &Interface,
) -> Result<MacAddr, Refusal> {
    let start = Instant::now();
    let mut pause = FIRST_LOOK;
    let mut asked = false;
    loop {
        let known = neighbour::look_up(netlink, neighbour, interface.index)
            .map_err(|error| failed("reading the neighbour table", &error))?;
        match known {
            Known::At(mac) => return Ok(mac),
            Known::Failed if asked && start.elapsed() > Duration::from_millis(100) => {
                return Err(no_answer(libc::EHOSTUNREACH, neighbour, interface));
            }
            _ if start.elapsed() > PATIENCE => {
                return Err(no_answer(libc::ETIMEDOUT, neighbour, interface));
            }
            _ => {}
        }
        if !asked {
            neighbour::nudge(netlink, Some(source), neighbour, interface.index);
            asked = true;
        }
        sleep(pause);
        pause = (pause * 2).min(LONGEST_LOOK);
    }
}

fn no_answer(errno: i32, neighbour: IpAddr, interface: &Interface) -> Refusal {
    let name = &interface.name;
    let question = if neighbour.is_ipv4() { "ARP" } else { "neighbour discovery" };
    let link = if interface.up { "" } else { " (the link is down)" };
    refusal(
        errno,
        format!(
            "{neighbour} does not answer {question} on {name}{link}: is it up, and on the same \
             network? `ip neigh show dev {name}` and `ping -I {name} {neighbour}` tell more"
        ),
    )
}

fn no_route(src: IpAddr, dst: IpAddr, error: &io::Error) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
    let errno = if errno == libc::EINVAL { libc::ENETUNREACH } else { errno };
    refusal(
        errno,
        format!(
            "no route from {src} to {dst} ({error}); `ip route get {dst} from {src}` shows why"
        ),
    )
}

fn on_this_host(dst: IpAddr) -> Refusal {
    refusal(
        libc::EHOSTUNREACH,
        format!(
            "{dst} is an address of this host but not of this device; serve it with --address \
             {dst}, or use --io udp"
        ),
    )
}

fn invalid(message: String) -> Refusal {
    refusal(libc::EINVAL, message)
}

fn failed(doing: &str, error: &io::Error) -> Refusal {
    refusal(error.raw_os_error().unwrap_or(libc::EIO), format!("{doing}: {error}"))
}

fn refusal(errno: i32, message: String) -> Refusal {
    Refusal { errno, message }
}
