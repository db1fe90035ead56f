//! Interfaces and their addresses.

use super::Place;
use super::netlink::Netlink;
use anyhow::{Context, Result, bail};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use roce_wire::MacAddr;
use std::net::IpAddr;
use std::path::Path;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interface {
    /// Index.
    pub(crate) index: u32,
    /// Name.
    pub(crate) name: String,
    /// MTU, bytes.
    pub(crate) mtu: u32,
    /// Up, with a carrier.
    pub(crate) up: bool,
    /// Ethernet address.
    pub(crate) mac: MacAddr,
    /// Mb/s, 0 unknown.
    pub(crate) speed: u32,
    /// A piece of hardware, not a virtual link.
    pub(crate) is_hardware: bool,
}

impl Interface {
    /// The interface called `name`.
    ///
    /// # Errors
    /// When there is none; the text names those that exist.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let all = all()?;
        let names: Vec<_> = all.iter().map(|interface| interface.name.clone()).collect();
        all.into_iter().find(|interface| interface.name == name).with_context(|| {
            format!("there is no interface {name:?} here; there are: {}", names.join(", "))
        })
    }
}

/// The interface of `place`, if it has one, and the addresses to serve.
pub(super) fn find(place: &Place) -> Result<(Option<Interface>, Vec<IpAddr>)> {
    if let Some(name) = &place.netdev {
        let interface = Interface::named(name)?;
        let mut addresses = addresses()?;
        addresses.retain(|(index, address)| {
            *index == interface.index
                && (place.addresses.is_empty() || place.addresses.contains(address))
        });
        let found = addresses.into_iter().map(|(_, address)| address).collect();
        return Ok((Some(interface), found));
    }
    let (interfaces, known) = (all()?, addresses()?);
    let of = |address: &IpAddr| {
        let index = known.iter().find(|(_, a)| a == address).map(|(index, _)| *index);
        // All of 127/8 is local without being listed.
        interfaces
            .iter()
            .find(|i| Some(i.index) == index || address.is_loopback() && i.name == "lo")
    };
    let mut narrowest: Option<&Interface> = None;
    for address in &place.addresses {
        let Some(interface) = of(address) else {
            bail!("{address} is not an address of this host; `ip -br address` lists them");
        };
        if narrowest.is_none_or(|other| interface.mtu < other.mtu) {
            narrowest = Some(interface);
        }
    }
    Ok((narrowest.cloned(), place.addresses.clone()))
}

fn all() -> Result<Vec<Interface>> {
    let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let answers = Netlink::new()?.ask(question, true)?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => understand(link),
            _ => None,
        })
        .collect())
}

fn understand(link: LinkMessage) -> Option<Interface> {
    let mut interface = Interface {
        index: link.header.index,
        name: String::new(),
        mtu: 0,
        // Flag "lower up" also covers interfaces without an operational state, such as lo.
        up: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        mac: MacAddr::default(),
        speed: 0,
        is_hardware: false,
    };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
            LinkAttribute::Address(bytes) => {
                interface.mac = MacAddr(bytes.try_into().unwrap_or_default());
            }
            _ => {}
        }
    }
    let sysfs = Path::new("/sys/class/net").join(&interface.name);
    interface.is_hardware = sysfs.join("device").exists();
    let speed = std::fs::read_to_string(sysfs.join("speed")).ok();
    interface.speed = speed.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    (!interface.name.is_empty()).then_some(interface)
}

/// Usable addresses with the index of their interface, in the kernel's order.
fn addresses() -> Result<Vec<(u32, IpAddr)>> {
    let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let answers = Netlink::new()?.ask(question, true)?;
    // Not usable (yet): somebody else may have it.
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewAddress(address) => Some(address),
            _ => None,
        })
        .filter(|address| !address.header.flags.intersects(unusable))
        .filter_map(|address| Some((address.header.index, own_address(&address)?)))
        .collect())
}

/// On point-to-point links `Address` is the peer's and `Local` is ours.
fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let find =
        |pick: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(pick);
    find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    })
    .or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Io;

    fn place(netdev: Option<&str>, addresses: &[&str]) -> Place {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        Place { io: Io::Udp, netdev: netdev.map(Into::into), addresses }
    }

    #[test]
    fn loopback_is_found_with_its_addresses() {
        let (interface, addresses) = find(&place(Some("lo"), &[])).unwrap();
        let interface = interface.unwrap();
        assert_eq!((interface.name.as_str(), interface.is_hardware), ("lo", false));
        assert!(interface.up && interface.mtu >= 1500);
        assert!(addresses.contains(&"127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn addresses_alone_find_their_interface() {
        let (interface, addresses) = find(&place(None, &["127.0.0.1", "127.3.2.1"])).unwrap();
        assert_eq!(interface.unwrap().name, "lo");
        assert_eq!(addresses.len(), 2);
        let error = find(&place(None, &["192.0.2.77"])).unwrap_err();
        assert!(error.to_string().contains("192.0.2.77"), "{error}");
    }

    #[test]
    fn an_unknown_interface_is_named_together_with_the_known_ones() {
        let error = Interface::named("nosuch0").unwrap_err().to_string();
        assert!(error.contains("nosuch0") && error.contains("lo"), "{error}");
    }
}
