//! Interfaces and their addresses, as the kernel lists them.

use super::NetError;
use super::netlink::{
    self, Attributes, Message, Netlink, RTM_DELLINK, RTM_GETADDR, RTM_GETLINK, RTM_NEWADDR,
    RTM_NEWLINK, u16_at, u32_at,
};
use roce_wire::{MacAddr, PathMtu};
use std::io;
use std::net::IpAddr;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Ethernet address; zero where there is none.
    pub mac: MacAddr,
    /// MTU, bytes.
    pub mtu: u32,
    /// Administratively up, with a carrier.
    pub up: bool,
    /// The host's own loopback.
    pub loopback: bool,
    /// It has neighbours to be resolved (Ethernet); false for loopback and point-to-point links.
    pub has_neighbours: bool,
    /// Kind of a virtual interface (`veth`, `tun`, `bridge`, `vlan`, ...); `None` for hardware.
    pub kind: Option<String>,
    /// For a VLAN interface: index of the interface below, and the VLAN id.
    pub vlan: Option<(u32, u16)>,
}

/// An interface, from when it comes to this network namespace until it is deleted or goes to
/// another one. It may come back with the index that it had: what was opened on it before is dead
/// all the same, and groups that it was a member of are left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Incarnation {
    /// The kernel's number of the interface.
    pub index: u32,
    /// Counts those that the device has had.
    pub generation: u64,
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InterfaceAddress {
    pub(super) ip: IpAddr,
    pub(super) prefix: u8,
    pub(super) ifindex: u32,
}

const IFINFOMSG: usize = 16;
const IFADDRMSG: usize = 8;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;
const IFF_POINTOPOINT: u32 = 0x10;
const IFF_NOARP: u32 = 0x80;
const IFF_LOWER_UP: u32 = 0x1_0000;
const ARPHRD_ETHER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Not usable yet, or never: duplicate address detection runs or has failed.
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_DADFAILED: u32 = 0x08;

/// All interfaces.
pub(super) fn interfaces(netlink: &mut Netlink) -> io::Result<Vec<Interface>> {
    netlink.list(RTM_GETLINK, &[0; IFINFOMSG], |message| {
        let header = message.header().filter(|_| message.kind == RTM_NEWLINK)?;
        describe(header, message.attributes(IFINFOMSG))
    })
}

/// The index of the interface that is no more, as a notification says. That an interface has left a
/// bridge is told in the same way, but for the family.
pub(super) fn gone(message: &Message<'_>) -> Option<u32> {
    let header: &[u8; IFINFOMSG] = message.header().filter(|_| message.kind == RTM_DELLINK)?;
    (i32::from(header[0]) == libc::AF_UNSPEC).then(|| u32_at(header, 4))?
}

fn describe(header: &[u8; IFINFOMSG], attributes: Attributes<'_>) -> Option<Interface> {
    let flags = u32_at(header, 8)?;
    let ethernet = u16_at(header, 2)? == ARPHRD_ETHER;
    let mut interface = Interface {
        name: String::new(),
        index: u32_at(header, 4)?,
        mac: MacAddr::default(),
        mtu: 0,
        up: flags & IFF_UP != 0 && flags & IFF_LOWER_UP != 0,
        loopback: flags & IFF_LOOPBACK != 0,
        has_neighbours: ethernet && flags & (IFF_NOARP | IFF_POINTOPOINT) == 0,
        kind: None,
        vlan: None,
    };
    let (mut below, mut vlan_id) = (None, None);
    for (kind, value) in attributes {
        match kind {
            IFLA_IFNAME => interface.name = text(value),
            IFLA_ADDRESS => {
                interface.mac = value.first_chunk().map_or(MacAddr::default(), |mac| MacAddr(*mac));
            }
            IFLA_MTU => interface.mtu = u32_at(value, 0)?,
            IFLA_LINK => below = u32_at(value, 0),
            IFLA_LINKINFO => {
                for (kind, value) in Attributes::nested(value) {
                    match kind {
                        IFLA_INFO_KIND => interface.kind = Some(text(value)),
                        IFLA_INFO_DATA => vlan_id = first_vlan_id(value),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if interface.kind.as_deref() == Some("vlan") {
        interface.vlan = below.zip(vlan_id);
    }
    Some(interface)
}

fn first_vlan_id(data: &[u8]) -> Option<u16> {
    Attributes::nested(data).find(|(kind, _)| *kind == IFLA_VLAN_ID).and_then(|a| u16_at(a.1, 0))
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// Link speed, Mb/s, 0 unknown: from sysfs, when that shows the namespace this process is in.
pub(super) fn speed(interface: &Interface) -> u32 {
    let read = |file: &str| {
        std::fs::read_to_string(format!("/sys/class/net/{}/{file}", interface.name)).ok()
    };
    let same = read("ifindex").is_some_and(|index| index.trim().parse() == Ok(interface.index));
    let speed = same.then(|| read("speed")).flatten();
    speed.and_then(|speed| speed.trim().parse().ok()).unwrap_or(0)
}

/// All usable addresses, in the kernel's order.
pub(super) fn addresses(netlink: &mut Netlink) -> io::Result<Vec<InterfaceAddress>> {
    netlink.list(RTM_GETADDR, &[0; IFADDRMSG], |message| {
        let header = message.header::<IFADDRMSG>().filter(|_| message.kind == RTM_NEWADDR)?;
        let (mut local, mut address) = (None, None);
        let mut flags = u32::from(header[2]);
        for (kind, value) in message.attributes(IFADDRMSG) {
            match kind {
                IFA_LOCAL => local = netlink::ip(value),
                IFA_ADDRESS => address = netlink::ip(value),
                IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
                _ => {}
            }
        }
        let is_usable = flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == 0;
        // On point-to-point links "address" is the peer's.
        let ip = local.or(address).filter(|_| is_usable)?;
        Some(InterfaceAddress { ip, prefix: header[1], ifindex: u32_at(header, 4)? })
    })
}

/// The interface called `name`.
pub(super) fn find<'a>(all: &'a [Interface], name: &str) -> Result<&'a Interface, NetError> {
    all.iter().find(|interface| interface.name == name).ok_or_else(|| {
        let mut names: Vec<_> = all.iter().map(|interface| interface.name.as_str()).collect();
        names.sort_unstable();
        NetError::new(format!(
            "there is no network interface {name}; this network namespace has {}",
            names.join(", ")
        ))
    })
}

/// The path MTU that an interface allows, and what to tell the user when it is not the largest.
pub(super) fn path_mtu(interface: &Interface) -> (PathMtu, Option<String>) {
    let Interface { name, mtu, .. } = interface;
    match PathMtu::for_link_mtu(*mtu) {
        Some(PathMtu::Mtu4096) => (PathMtu::Mtu4096, None),
        Some(path) => {
            let warning = format!(
                "interface {name} has MTU {mtu}: path MTU limited to {}; use `ip link set {name} \
                 mtu 4200` for 4096",
                path.bytes()
            );
            (path, Some(warning))
        }
        None => {
            let warning = format!(
                "interface {name} has MTU {mtu}, too small for RoCE; use `ip link set {name} mtu \
                 4200`"
            );
            (PathMtu::Mtu256, Some(warning))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed() {
        let mut netlink = Netlink::open().unwrap();
        let all = interfaces(&mut netlink).unwrap();
        let lo = find(&all, "lo").unwrap();
        assert!(lo.loopback && !lo.has_neighbours && lo.kind.is_none(), "{lo:?}");
        let error = find(&all, "no-such-0").unwrap_err().to_string();
        assert!(error.contains("no-such-0") && error.contains("lo"), "{error}");
        addresses(&mut netlink).unwrap();
    }

    #[test]
    fn a_small_mtu_is_explained() {
        let mut netlink = Netlink::open().unwrap();
        let mut lo = find(&interfaces(&mut netlink).unwrap(), "lo").unwrap().clone();
        lo.mtu = 1500;
        let (path, warning) = path_mtu(&lo);
        assert_eq!(path, PathMtu::Mtu1024);
        assert_eq!(
            warning.unwrap(),
            "interface lo has MTU 1500: path MTU limited to 1024; use `ip link set lo mtu 4200` \
             for 4096"
        );
        lo.mtu = 4192;
        assert_eq!(path_mtu(&lo), (PathMtu::Mtu4096, None));
        lo.mtu = 68;
        assert!(path_mtu(&lo).1.unwrap().contains("too small"));
    }
}
