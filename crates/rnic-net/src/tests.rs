//! The network against a real kernel, in namespaces.

use super::hops::HopKey;
use super::*;
use rnic_abi::verbs::AhAttr;
use rnic_core::ports::HopId;
use roce_wire::{MacAddr, ROCE_PORT, VlanTag};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use testbed::{Pair, V4_A, V4_B, V6_B, is_root, skip, wait_for};

fn on_eth0() -> NetConfig {
    NetConfig { netdev: Some("eth0".into()), addresses: Vec::new() }
}

fn start(pair: &Pair, config: NetConfig) -> (Arc<Network>, mpsc::Receiver<Change>) {
    let (sender, changes) = mpsc::channel();
    let report = move |change| {
        // The test may have ended.
        let _ = sender.send(change);
    };
    (pair.a.run(|| Network::start(config, Box::new(report)).unwrap()), changes)
}

fn to(dst: &str, sgid_index: u8) -> AhAttr {
    let dgid = Gid::from_ip(dst.parse().unwrap()).0;
    AhAttr { dgid, sgid_index, is_global: true, port_num: 1, sl: 3, ..AhAttr::default() }
}

fn mac_of(pair: &Pair, side_b: bool, interface: &str) -> MacAddr {
    let namespace = if side_b { &pair.b } else { &pair.a };
    MacAddr(namespace.run(|| xdp_io::netdev::mac(interface).unwrap()))
}

fn gid_texts(network: &Network) -> Vec<(u32, String)> {
    let text = |entry: &GidEntry| (entry.index, Gid(entry.gid).to_ip().to_string());
    network.gids().iter().map(text).collect()
}

#[test]
fn neighbours_are_resolved_and_followed() {
    if !is_root("neighbours_are_resolved_and_followed") {
        return;
    }
    let pair = Pair::new(4200);
    let (network, _changes) = start(&pair, on_eth0());
    let (mac_a, mac_b) = (mac_of(&pair, false, "eth0"), mac_of(&pair, true, "eth0"));
    let hops = network.hops();
    for (peer, index) in [(V4_B, 0), (V6_B, 1)] {
        let (path, _hold) = pair.a.run(|| network.resolve(&to(&peer.to_string(), index))).unwrap();
        assert_eq!((path.flow.dst, path.flow.hop_limit, path.flow.sport), (peer, 64, 0));
        let hop = hops.get(path.hop).unwrap();
        assert_eq!(hop, Hop { dst_mac: mac_b, src_mac: mac_a, vlan: None });
        let (again, _) = pair.a.run(|| network.resolve(&to(&peer.to_string(), index))).unwrap();
        assert_eq!(again.hop, path.hop);
    }
    let (path, hold) = pair.a.run(|| network.resolve(&to(&V4_B.to_string(), 0))).unwrap();
    let hop = path.hop;

    // The peer gets another Ethernet address and sends an ARP request: the kernel learns the
    // address.
    pair.b.ip("link set eth0 address 02:00:00:00:0b:0b");
    pair.b.run(|| {
        let socket = std::net::UdpSocket::bind((V4_B, 0)).unwrap();
        socket.send_to(&[1], (V4_A, 9)).unwrap();
    });
    wait_for("the hop to follow its neighbour", || {
        (hops.get(hop)?.dst_mac.0 == [2, 0, 0, 0, 0xb, 0xb]).then_some(())
    });

    // So do we.
    pair.a.ip("link set eth0 address 02:00:00:00:0a:0a");
    wait_for("the hop to follow our own address", || {
        (hops.get(hop)?.src_mac.0 == [2, 0, 0, 0, 0xa, 0xa]).then_some(())
    });
    assert!(hops.is_own(MacAddr([2, 0, 0, 0, 0xa, 0xa])) && !hops.is_own(mac_a));
    drop(hold);
    assert_eq!(hops.get(hop), None, "nothing goes there any more");
}

#[test]
fn groups_are_on_the_network_of_their_sender() {
    if !is_root("groups_are_on_the_network_of_their_sender") {
        return;
    }
    let pair = Pair::new(4200);
    let (network, _changes) = start(&pair, on_eth0());
    let src_mac = mac_of(&pair, false, "eth0");
    for (group, index) in [("239.1.2.3", 0), ("ff0e::4791", 1)] {
        let started = Instant::now();
        let (path, _hold) = pair.a.run(|| network.resolve(&to(group, index))).unwrap();
        assert!(started.elapsed() < Duration::from_secs(1), "a group has no neighbour to ask");
        let dst_mac = MacAddr::of_group(group.parse().unwrap());
        assert_eq!(network.hops().get(path.hop), Some(Hop { dst_mac, src_mac, vlan: None }));
        let by_kernel = pair.a.run(|| network.resolve_for_sockets(&to(group, index), 4791));
        assert_eq!(by_kernel.map(|(path, _)| path.hop), Ok(KERNEL));
    }
    let other_family = pair.a.run(|| network.resolve(&to("239.1.2.3", 1))).err().unwrap();
    assert_eq!(other_family.errno, libc::EINVAL);
}

#[test]
fn what_cannot_be_reached_is_refused_with_a_reason() {
    if !is_root("what_cannot_be_reached_is_refused_with_a_reason") {
        return;
    }
    let pair = Pair::new(4200);
    let (network, _changes) = start(&pair, on_eth0());
    let refusal = |attr: AhAttr| pair.a.run(|| network.resolve(&attr)).err().unwrap();
    let started = Instant::now();
    let silent = refusal(to("10.88.0.77", 0));
    assert_eq!(silent.errno, libc::EHOSTUNREACH, "{silent}");
    assert!(silent.message.contains("does not answer ARP on eth0"), "{silent}");
    assert!(started.elapsed() < Duration::from_secs(4));
    let nowhere = refusal(to("203.0.113.5", 0));
    assert_eq!(nowhere.errno, libc::ENETUNREACH, "{nowhere}");
    assert!(nowhere.message.contains("ip route get 203.0.113.5 from 10.88.0.1"), "{nowhere}");
    for (attr, text) in [
        (to("10.88.0.2", 9), "index 9 is empty"),
        (to("10.88.0.2", 1), "same address family"),
        (to("::", 1), "GID is zero"),
        (AhAttr { is_global: false, ..to("10.88.0.2", 0) }, "is_global"),
    ] {
        let refusal = refusal(attr);
        assert_eq!(refusal.errno, libc::EINVAL);
        assert!(refusal.message.contains(text), "{refusal}");
    }
    pair.a.ip("address add 10.99.0.1/32 dev lo");
    let here = refusal(to("10.99.0.1", 0));
    assert!(here.message.contains("not of this device"), "{here}");
    let (own, _) = pair.a.run(|| network.resolve(&to(&V4_A.to_string(), 0))).unwrap();
    assert_eq!(own.hop, HopId::LOCAL);
}

#[test]
fn routes_lead_through_gateways() {
    if !is_root("routes_lead_through_gateways") {
        return;
    }
    let pair = Pair::new(4200);
    pair.a.ip("route add 203.0.113.0/24 via 10.88.0.2");
    pair.a.ip("-6 route add 2001:db8::/32 via fd88::2");
    let (network, _changes) = start(&pair, on_eth0());
    let hops = network.hops();
    let mac_b = mac_of(&pair, true, "eth0");
    for (dst, index) in [("203.0.113.9", 0), ("2001:db8::9", 1)] {
        let (path, _hold) = pair.a.run(|| network.resolve(&to(dst, index))).unwrap();
        assert_eq!(hops.get(path.hop).unwrap().dst_mac, mac_b, "{dst}");
    }
}

#[test]
fn addresses_of_vlans_are_served_and_tagged() {
    if !is_root("addresses_of_vlans_are_served_and_tagged") {
        return;
    }
    let pair = Pair::new(4200);
    for (namespace, host) in [(&pair.a, 1), (&pair.b, 2)] {
        if namespace.try_ip("link add link eth0 name eth0.7 type vlan id 7").is_err() {
            skip("addresses_of_vlans_are_served_and_tagged", "the kernel has no VLAN interfaces");
            return;
        }
        namespace.ip(&format!("address add 10.70.0.{host}/24 dev eth0.7"));
        namespace.ip("link set eth0.7 up");
    }
    let (network, _changes) = start(&pair, on_eth0());
    let gids = gid_texts(&network);
    let index = gids.iter().find(|(_, text)| text == "10.70.0.1").unwrap().0;
    assert_eq!(index, 1, "behind the interface's own: {gids:?}");
    let (path, _hold) = pair.a.run(|| network.resolve(&to("10.70.0.2", index as u8))).unwrap();
    let hop = network.hops().get(path.hop).unwrap();
    assert_eq!(hop.vlan, Some(VlanTag::new(3, 7)));
    assert_eq!(hop.dst_mac, mac_of(&pair, true, "eth0"));
}

/// Of the kernel's list.
pub(super) fn interface(
    index: u32,
    name: &str,
    mac: MacAddr,
    vlan: Option<(u32, u16)>,
) -> Interface {
    let (name, kind) = (name.to_owned(), vlan.map(|_| "vlan".to_owned()));
    let (mtu, up, loopback, has_neighbours) = (4200, true, false, true);
    Interface { name, index, mac, mtu, up, loopback, has_neighbours, kind, vlan }
}

/// A device on these interfaces, of which the first is its own.
pub(super) fn shared(interfaces: Vec<Interface>) -> Shared {
    let state = State::new(interfaces[0].clone());
    let (config, hops, kernel_sends) = (on_eth0(), HopTable::default(), AtomicBool::new(false));
    let shared = Shared { config, hops, kernel_sends, state: Mutex::new(state) };
    shared.take_over(interfaces, &[]);
    shared
}

pub(super) const MAC: [MacAddr; 3] = [MacAddr([2; 6]), MacAddr([4; 6]), MacAddr([6; 6])];

/// The hop of a QP to a neighbour on an interface.
fn hop_on(shared: &Shared, interface: &Interface) -> (HopId, Hold) {
    let key = HopKey { neighbour: V4_B, ifindex: interface.index, priority: 0 };
    let vlan = interface.vlan.map(|(_, id)| VlanTag::new(0, id));
    shared.hops.learn(key, Hop { dst_mac: MAC[2], src_mac: interface.mac, vlan }).unwrap()
}

#[test]
fn a_vlan_changes_its_own_ethernet_address() {
    let eth0 = interface(3, "eth0", MAC[0], None);
    let vlan = |mac| interface(4, "eth0.7", mac, Some((3, 7)));
    let shared = shared(vec![eth0.clone(), vlan(MAC[0])]);
    let (hop, _hold) = hop_on(&shared, &vlan(MAC[0]));
    let (below, _hold) = hop_on(&shared, &eth0);
    shared.take_over(vec![eth0, vlan(MAC[1])], &[]);
    assert_eq!(shared.hops.get(hop).unwrap().src_mac, MAC[1]);
    assert_eq!(shared.hops.get(below).unwrap().src_mac, MAC[0]);
    assert!(shared.hops.is_own(MAC[0]) && shared.hops.is_own(MAC[1]));
    let served = [7, 8].map(|id| shared.hops.serves_vlan(VlanTag::new(0, id)));
    assert_eq!(served, [true, false]);
}

#[test]
fn a_vlan_that_is_made_anew_keeps_its_hops() {
    let eth0 = interface(3, "eth0", MAC[0], None);
    let vlan = |index, below| interface(index, "eth0.7", MAC[1], Some((below, 7)));
    let shared = shared(vec![eth0.clone(), vlan(4, 3)]);
    let (hop, _hold) = hop_on(&shared, &vlan(4, 3));
    shared.take_over(vec![eth0], &[]);
    // With the interface below, which takes the VLANs on it away.
    let anew = interface(8, "eth0", MAC[2], None);
    let change = shared.take_over(vec![anew, vlan(9, 8)], &[]).unwrap();
    assert_eq!((change.interface.index, shared.hops.neighbours()), (8, vec![(V4_B, 9)]));
    shared.hops.refresh(V4_B, 9, MAC[0]);
    let vlan = Some(VlanTag::new(0, 7));
    assert_eq!(shared.hops.get(hop), Some(Hop { dst_mac: MAC[0], src_mac: MAC[1], vlan }));
}

#[test]
fn an_interface_with_the_index_of_a_vlan_that_went_keeps_its_hops() {
    let eth0 = |index| interface(index, "eth0", MAC[0], None);
    let vlan = |index, below| interface(index, "eth0.7", MAC[1], Some((below, 7)));
    // The VLAN went before.
    let device = shared(vec![eth0(3), vlan(4, 3)]);
    device.take_over(vec![eth0(3)], &[]);
    device.take_over(vec![eth0(4)], &[]);
    let (_, _hold) = hop_on(&device, &eth0(4));
    device.take_over(vec![eth0(4), vlan(9, 4)], &[]);
    assert_eq!(device.hops.neighbours(), [(V4_B, 4)]);
    // It goes at the same time.
    let device = shared(vec![eth0(3), vlan(4, 3)]);
    let ((own, _a), (tagged, _b)) = (hop_on(&device, &eth0(3)), hop_on(&device, &vlan(4, 3)));
    device.take_over(vec![eth0(4), vlan(9, 4)], &[]);
    device.hops.refresh(V4_B, 9, MAC[1]);
    let found = [own, tagged].map(|hop| device.hops.get(hop).unwrap().dst_mac);
    assert_eq!(found, [MAC[2], MAC[1]]);
}

#[test]
fn an_interface_that_is_made_anew_is_followed() {
    if !is_root("an_interface_that_is_made_anew_is_followed") {
        return;
    }
    let pair = Pair::new(4200);
    let (network, changes) = start(&pair, on_eth0());
    let hops = network.hops();
    let (path, _hold) = pair.a.run(|| network.resolve(&to(&V4_B.to_string(), 0))).unwrap();
    let before = network.now().interface.index;
    pair.make_anew(4200);
    let change = wait_for("the new interface", || {
        let change = changes.recv_timeout(Duration::from_secs(5)).unwrap();
        (change.port.active && change.addresses.len() == 3).then_some(change)
    });
    let now = pair.a.run(|| xdp_io::netdev::index("eth0").unwrap());
    assert_eq!(change.interface.index, now);
    assert_ne!(now, before);
    let macs = [false, true].map(|side_b| mac_of(&pair, side_b, "eth0"));
    wait_for("the hop to follow", || {
        let hop = hops.get(path.hop)?;
        ([hop.src_mac, hop.dst_mac] == macs).then_some(())
    });
}

#[test]
fn an_interface_that_is_away_for_a_while_is_another_one() {
    let eth0 = interface(3, "eth0", MAC[0], None);
    let other = interface(2, "eth1", MAC[1], None);
    let shared = shared(vec![eth0.clone()]);
    let generation = || shared.lock().change(false).interface.generation;
    let first = generation();
    let look = |interfaces: &[&Interface]| {
        shared.take_over(interfaces.iter().copied().cloned().collect(), &[]).is_some()
    };
    assert!(!look(&[&eth0]));
    // It is back before it is looked for.
    shared.lock().is_gone(2);
    assert!(!look(&[&eth0]), "it is another one's index");
    shared.lock().is_gone(3);
    assert!(look(&[&eth0]));
    assert_ne!(generation(), first);
    // It is looked for in vain.
    let before = generation();
    shared.lock().is_gone(3);
    look(&[&other]);
    assert_eq!(generation(), before, "there is none to use");
    look(&[&eth0]);
    assert_eq!(generation(), before + 1);
}

/// As container runtimes do; the kernel gives it the same index again.
#[test]
fn an_interface_that_comes_back_with_its_index_is_followed() {
    if !is_root("an_interface_that_comes_back_with_its_index_is_followed") {
        return;
    }
    let pair = Pair::new(4200);
    let (network, changes) = start(&pair, on_eth0());
    let before = network.now().interface;
    pair.lend();
    let change = wait_for("the interface", || {
        let change = changes.recv_timeout(Duration::from_secs(5)).unwrap();
        (change.port.active && change.addresses.len() == 3).then_some(change)
    });
    assert_eq!(change.interface.index, before.index);
    assert_ne!(change.interface.generation, before.generation);
    let now = network.now();
    pair.a.ip("address add 10.88.9.1/24 dev eth0");
    wait_for("the address", || (network.now().addresses != now.addresses).then_some(()));
    assert_eq!(network.now().interface, now.interface, "it stayed");
}

#[test]
fn changes_are_reported_and_gids_keep_their_indices() {
    if !is_root("changes_are_reported_and_gids_keep_their_indices") {
        return;
    }
    let pair = Pair::new(1500);
    let (network, changes) = start(&pair, on_eth0());
    let next = || changes.recv_timeout(Duration::from_secs(5)).unwrap();
    let port = network.port();
    assert_eq!((port.active, port.active_mtu, port.netdev_mtu), (true, 3, 1500));

    pair.a.ip("address add 10.88.1.1/24 dev eth0");
    let change = next();
    assert!(change.port.gids_changed && change.addresses.len() == 4, "{change:?}");
    pair.a.ip("address del 10.88.0.1/24 dev eth0");
    next();
    let expected = [(1, "fd88::1"), (2, "fe80::1"), (3, "10.88.1.1")];
    assert_eq!(gid_texts(&network), expected.map(|(i, text)| (i, text.to_owned())));
    pair.a.ip("address add 10.88.2.1/24 dev eth0");
    next();
    assert_eq!(gid_texts(&network)[0], (0, "10.88.2.1".to_owned()));

    pair.a.ip("link set eth0 mtu 4200");
    let change = next();
    assert_eq!((change.mtu, change.port.active_mtu, change.port.gids_changed), (4200, 5, false));
    pair.a.ip("link set eth0 down");
    wait_for("the port to go down", || {
        (!changes.recv_timeout(Duration::from_secs(5)).ok()?.port.active).then_some(())
    });
}

#[test]
fn addresses_without_an_interface_are_found_on_their_own() {
    if !is_root("addresses_without_an_interface_are_found_on_their_own") {
        return;
    }
    let pair = Pair::new(4200);
    let (network, _changes) = start(&pair, NetConfig::default());
    assert_eq!(gid_texts(&network), [(0, "127.0.0.1".to_owned()), (1, "::1".to_owned())]);
    assert!(network.port().active && network.port().active_mtu == 5);
    let only = |text: &str| NetConfig { netdev: None, addresses: vec![text.parse().unwrap()] };
    let (network, _changes) = start(&pair, only("127.0.0.9"));
    network.set_kernel_sends(true);
    let (path, _) = pair.a.run(|| network.resolve(&to("127.0.0.8", 0))).unwrap();
    assert_eq!((path.hop, path.flow.sport), (KERNEL, ROCE_PORT));
    let (network, _changes) = start(&pair, only("10.88.0.1"));
    assert_eq!(network.interface().name, "eth0");
    let failed = |config| pair.a.run(|| Network::start(config, Box::new(|_| {}))).err().unwrap();
    let strange = failed(only("192.0.2.1")).to_string();
    assert!(strange.contains("192.0.2.1") && strange.contains("10.88.0.1 (eth0)"), "{strange}");
    let missing = failed(NetConfig { netdev: Some("eth9".into()), addresses: Vec::new() });
    assert!(missing.to_string().contains("has eth0, lo"), "{missing}");
}

#[test]
fn sessions_without_rights_resolve_too() {
    if !is_root("sessions_without_rights_resolve_too") {
        return;
    }
    let pair = Pair::new(4200);
    let (network, _changes) = start(&pair, on_eth0());
    for (peer, index) in [(V4_B, 0), (V6_B, 1)] {
        let (path, _hold) = pair.a.run(|| {
            let other = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(other, other, other).unwrap();
            network.resolve(&to(&peer.to_string(), index)).unwrap()
        });
        let hop = network.hops().get(path.hop).unwrap();
        assert_eq!(hop.dst_mac, mac_of(&pair, true, "eth0"));
    }
}
