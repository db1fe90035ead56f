//! Every kind of wire against every other, on veth pairs, through the `Wire` trait.

mod anew;
pub(super) mod exchange;
mod speed;

use super::{DeviceWire, OUTSIDE, WireConfig, open};
use crate::observe::{self, Wants, Way};
use crate::settings::{Io, XdpMode};
use crate::wire::Links;
use exchange::{Seen, Shape, Side};
use rnic_abi::verbs::AhAttr;
use rnic_core::command::{Path, PortState};
use rnic_core::ports::{HopId, TxTrain, Wire};
use rnic_net::{Change, HopTable, Incarnation, NetConfig, Network};
use roce_wire::{Flow, Frame, MacAddr, ROCE_PORT};
use std::net::IpAddr;
use std::sync::Arc;
use testbed::{Namespace, Pair, V4_A, V4_B, V6_A, V6_B, is_root, wait_for};
use xdp_io::udp::{self, UdpConfig, UdpPort};

const AUTO: WireConfig =
    WireConfig { io: Io::Auto, xdp_mode: XdpMode::Auto, trains: true, users: false };
const UDP: WireConfig = WireConfig { io: Io::Udp, ..AUTO };
const PACKET: WireConfig = WireConfig { io: Io::AfPacket, ..AUTO };
/// As on a kernel that knows no trains.
const SINGLE: WireConfig = WireConfig { trains: false, ..PACKET };
const NATIVE: WireConfig = WireConfig { io: Io::AfXdp, xdp_mode: XdpMode::Native, ..AUTO };
const GENERIC: WireConfig = WireConfig { io: Io::AfXdp, xdp_mode: XdpMode::Generic, ..AUTO };

fn start(namespace: &Namespace, config: WireConfig) -> (Arc<Network>, DeviceWire) {
    namespace.run(|| {
        let place = NetConfig { netdev: Some("eth0".into()), addresses: Vec::new() };
        let network = Network::start(place, Box::new(|_| {})).unwrap();
        let wire = open(&config, &network).unwrap();
        (network, wire)
    })
}

/// From a device to itself.
pub(super) fn loopback_path() -> Path {
    let address = IpAddr::from([127, 0, 0, 1]);
    Path { attr: AhAttr::default(), flow: Flow::new(address, address, 0xc001), hop: HopId::LOCAL }
}

/// A device with these addresses.
pub(crate) fn change(addresses: &[IpAddr]) -> Change {
    let port = PortState { active: true, active_mtu: 5, gids_changed: false };
    let interface = Incarnation { index: 1, generation: 0 };
    Change { port, addresses: addresses.to_vec(), mtu: 65_536, interface }
}

/// One datagram on that path, to an engine's own queue pair.
pub(super) fn train_to_itself(len: u32) -> TxTrain {
    let Path { flow, hop, .. } = loopback_path();
    TxTrain { flow, hop, segments: 1, segment_len: len, last_len: len, ip_id: 0, to_self: true }
}

/// Both ends of a veth pair, with paths to each other; `None` without root.
fn pair_of(a: WireConfig, b: WireConfig, mtu: u32) -> Option<(Pair, Side, Side)> {
    if !is_root("wires on veth pairs") {
        return None;
    }
    let pair = Pair::new(mtu);
    // Both open before either resolves: opening XDP resets the link for a moment.
    let (left, right) = (start(&pair.a, a), start(&pair.b, b));
    let to_b = [V4_B, V6_B].map(|peer| pair.a.run(|| exchange::path(&left.0, peer)));
    let to_a = [V4_A, V6_A].map(|peer| pair.b.run(|| exchange::path(&right.0, peer)));
    let (left, right) = (Side::new(left.0, left.1, to_b), Side::new(right.0, right.1, to_a));
    Some((pair, left, right))
}

fn converse(a: WireConfig, b: WireConfig, mtus: &[u32]) {
    for mtu in mtus {
        let Some((_pair, mut left, mut right)) = pair_of(a, b, *mtu) else { return };
        println!("{} <-> {} at MTU {mtu}", left.wire.mode(), right.wire.mode());
        for family in 0..2 {
            exchange::converse(&mut left, &mut right, family);
            exchange::converse(&mut right, &mut left, family);
        }
    }
}

#[test]
fn udp_and_udp() {
    converse(UDP, UDP, &[1500, 4200]);
}

#[test]
fn xdp_native_and_native() {
    converse(NATIVE, NATIVE, &[1500, 4200]);
}

#[test]
fn xdp_generic_and_generic() {
    converse(GENERIC, GENERIC, &[1500, 4200]);
}

#[test]
fn packet_and_udp() {
    converse(PACKET, UDP, &[1500, 4200]);
    // A sender's kernel leaves trains joined, and does not say so: they must be taken apart.
    converse(SINGLE, UDP, &[1500, 4200]);
}

#[test]
fn packet_and_packet() {
    converse(PACKET, PACKET, &[4200]);
    converse(SINGLE, PACKET, &[4200]);
    converse(SINGLE, SINGLE, &[1500, 4200]);
}

#[test]
fn packet_and_xdp() {
    converse(PACKET, NATIVE, &[1500, 4200]);
    converse(PACKET, GENERIC, &[1500]);
    converse(SINGLE, NATIVE, &[4200]);
    converse(SINGLE, GENERIC, &[1500]);
}

#[test]
fn udp_and_xdp() {
    converse(UDP, NATIVE, &[4200]);
    // A sender's kernel leaves trains joined for a generic program: they must be taken apart.
    converse(UDP, GENERIC, &[1500, 4200]);
}

#[test]
fn a_full_link_holds_back_and_loses_nothing() {
    // The receiver is not asked until the sender's wire refuses, or has queued much.
    let Some((_pair, mut from, mut to)) = pair_of(UDP, UDP, 4200) else { return };
    let path = from.path(0);
    let shape = Shape { count: 15, len: 4136, last: 4136 };
    let (mut number, mut seen) = (0, Seen::default());
    let mut refused = 0;
    while refused < 20 {
        let mut reserved = 0;
        while exchange::put(&mut from.wire, &path, 0, number, shape).is_some() {
            number += shape.count;
            reserved += 1;
        }
        refused += 1;
        from.wire.submit();
        assert!(reserved > 0 || from.wire.has_backlog());
        let sent = number as usize;
        if from.wire.has_backlog() {
            exchange::take(&mut to.wire, &path.flow, &mut seen);
        } else {
            exchange::take_all(&mut to.wire, &path.flow, &mut seen, sent);
        }
    }
    while from.wire.has_backlog() {
        from.wire.submit();
        exchange::take(&mut to.wire, &path.flow, &mut seen);
    }
    exchange::take_all(&mut to.wire, &path.flow, &mut seen, number as usize);
    assert!(seen.numbers.iter().copied().eq(0..number));
}

#[test]
fn cancelled_trains_are_not_sent() {
    for config in [UDP, PACKET, SINGLE, NATIVE] {
        let Some((_pair, mut from, mut to)) = pair_of(config, config, 4200) else { return };
        let path = from.path(0);
        let one = Shape { count: 1, len: 100, last: 100 };
        let mut send = |number| exchange::put(&mut from.wire, &path, 0, number, one).unwrap();
        send(0);
        let second = send(1);
        send(2);
        from.wire.cancel_from(&second);
        exchange::put(&mut from.wire, &path, 0, 3, one).unwrap();
        from.wire.submit();
        let mut seen = Seen::default();
        exchange::take_all(&mut to.wire, &path.flow, &mut seen, 2);
        assert_eq!(seen.numbers, [0, 3], "{}", from.wire.mode());
    }
}

#[test]
fn what_has_no_way_out_is_swallowed() {
    let Some((_pair, mut from, mut to)) = pair_of(NATIVE, UDP, 4200) else { return };
    let mut nowhere = from.path(0);
    nowhere.hop = HopId(4711);
    let (watcher, sent) = observe::watch(FRAMES);
    from.wire.observe(&watcher);
    let one = Shape { count: 1, len: 100, last: 100 };
    let lost = exchange::put(&mut from.wire, &nowhere, 0, 0, one).unwrap();
    exchange::put(&mut from.wire, &nowhere, 0, 1, one).unwrap();
    from.wire.cancel_from(&lost);
    exchange::put(&mut from.wire, &nowhere, 0, 2, one).unwrap();
    let path = from.path(0);
    exchange::put(&mut from.wire, &path, 0, 3, one).unwrap();
    from.wire.submit();
    let mut seen = Seen::default();
    exchange::take_all(&mut to.wire, &path.flow, &mut seen, 1);
    assert_eq!(seen.numbers, [3]);
    assert_eq!(sent.frames().len(), 1, "what was not on the wire is captured");
    let swallowed = from.wire.counters().iter().find(|(n, _)| *n == "link_tx_no_route").copied();
    assert_eq!(swallowed, Some(("link_tx_no_route", 3)));
}

/// Sockets of another host that have joined the groups get what is sent to them.
#[test]
fn groups_are_reached_by_every_wire() {
    if !is_root("groups_are_reached_by_every_wire") {
        return;
    }
    for config in [UDP, PACKET, SINGLE, GENERIC, NATIVE] {
        let pair = Pair::new(4200);
        let groups = ["239.1.2.3", "ff0e::4791"].map(|group| group.parse::<IpAddr>().unwrap());
        let mut member = pair.b.run(|| {
            let scope_id = xdp_io::netdev::index("eth0").unwrap();
            let sockets = UdpConfig::new(groups.to_vec(), ROCE_PORT);
            UdpPort::bind(&UdpConfig { scope_id, ..sockets }).unwrap()
        });
        let (network, mut wire) = start(&pair.a, config);
        for group in groups {
            let (path, _hold) = pair.a.run(|| exchange::path(&network, group));
            let one = Shape { count: 1, len: 1040, last: 1040 };
            exchange::put(&mut wire, &path, 0, 0, one).unwrap();
            wire.submit();
            let mut trains = [udp::RxTrain::default(); 4];
            wait_for("a member to get it", || (member.receive(&mut trains) > 0).then_some(()));
            let [train, ..] = trains;
            assert_eq!((train.len, train.src.ip(), train.dst), (1040, path.flow.src, group));
            member.release_rx();
        }
    }
}

#[test]
fn what_other_hosts_send_is_no_loss_of_the_local_link() {
    for config in [PACKET, NATIVE] {
        let config = WireConfig { users: true, ..config };
        let Some((_pair, mut from, mut to)) = pair_of(UDP, config, 4200) else { return };
        let path = from.path(0);
        let (shape, mut seen) = (Shape { count: 15, len: 1040, last: 1040 }, Seen::default());
        exchange::put(&mut from.wire, &path, 0, 0, shape).unwrap();
        from.wire.submit();
        exchange::take_all(&mut to.wire, &path.flow, &mut seen, 15);
        let lost = to.wire.counters().into_iter().find(|(name, _)| *name == "local_rx_no_buffer");
        let known = (config.io == Io::AfXdp).then_some(0);
        assert_eq!(lost.map(|(_, count)| count), known, "{}", to.wire.mode());
    }
}

#[test]
fn the_device_reaches_itself() {
    let Some((pair, mut side, _other)) = pair_of(PACKET, UDP, 4200) else { return };
    let network = side.network();
    let (path, _hold) = pair.a.run(|| exchange::path(network, V4_A));
    assert_eq!(path.hop, HopId::LOCAL);
    let mut seen = Seen::default();
    let shape = Shape { count: 15, len: 4136, last: 1000 };
    for round in 0..50 {
        let number = round * shape.count;
        exchange::put(&mut side.wire, &path, 7, number, shape).unwrap();
        side.wire.submit();
        assert!(side.wire.has_backlog());
        exchange::take_all(&mut side.wire, &path.flow, &mut seen, (number + shape.count) as usize);
    }
    assert_eq!((seen.trains, seen.unpredicted), (50, 0));
}

#[test]
fn the_way_outside_is_heard_beside_a_busy_loopback() {
    let Some((pair, mut side, mut other)) = pair_of(PACKET, UDP, 4200) else { return };
    let network = side.network();
    let (own, _hold) = pair.a.run(|| exchange::path(network, V4_A));
    let one = Shape { count: 1, len: 100, last: 100 };
    let path = other.path(0);
    exchange::put(&mut other.wire, &path, 0, 0, one).unwrap();
    other.wire.submit();
    let mut trains = Vec::with_capacity(64);
    let (mut sent, mut received) = (0, 0);
    wait_for("a frame from outside", || {
        exchange::put(&mut side.wire, &own, 0, 0, one).unwrap();
        side.wire.submit();
        sent += 1;
        trains.clear();
        side.wire.receive(&mut trains);
        let outside = trains.iter().filter(|train| train.arena == OUTSIDE).count();
        assert_eq!(side.wire.heard_outside(), outside > 0);
        side.wire.release();
        received += trains.len() - outside;
        (outside > 0).then_some(())
    });
    assert_eq!(sent, received, "by loopback");
}

#[test]
fn what_anybody_looks_at_or_disturbs_is_made_as_for_outside() {
    let mut wire = DeviceWire::new("loopback".into(), Links::default(), HopTable::default());
    let train = train_to_itself(1040);
    let stays_internal = |wire: &mut DeviceWire| {
        let mut trains = Vec::with_capacity(8);
        wire.receive(&mut trains);
        wire.release();
        let is_internal = wire.reserve(&train).unwrap().is_internal;
        wire.submit();
        is_internal
    };
    assert!(stays_internal(&mut wire));
    let (watcher, feed) = observe::watch(FRAMES);
    wire.observe(&watcher);
    assert!(!stays_internal(&mut wire));
    drop(feed);
    assert!(!stays_internal(&mut wire), "the end of the watcher shows with the next train");
    assert!(stays_internal(&mut wire));
    wire.change_faults(crate::wire::FaultChange::Add(vec!["drop".parse().unwrap()], None)).unwrap();
    assert!(!stays_internal(&mut wire));
    wire.change_faults(crate::wire::FaultChange::Clear).unwrap();
    assert!(stays_internal(&mut wire));
}

#[test]
fn what_was_held_back_when_faults_end_is_no_internal_train() {
    let mut wire = DeviceWire::new("loopback".into(), Links::default(), HopTable::default());
    let train = train_to_itself(1040);
    let delay = "delay:1ms,dir=sent".parse().unwrap();
    wire.change_faults(crate::wire::FaultChange::Add(vec![delay], None)).unwrap();
    wire.reserve(&train).unwrap();
    wire.submit();
    wire.change_faults(crate::wire::FaultChange::Clear).unwrap();
    let mut trains = Vec::with_capacity(8);
    wait_for("the datagram", || {
        wire.receive(&mut trains);
        wire.submit();
        trains.first().copied()
    });
    // It has an ICRC, which is to be checked.
    assert!(!trains[0].is_internal);
}

#[test]
fn auto_chooses_by_interface() {
    if !is_root("auto_chooses_by_interface") {
        return;
    }
    let pair = Pair::new(4200);
    let (_network, wire) = start(&pair.a, AUTO);
    assert_eq!(wire.mode(), "udp", "a virtual link");
    // Another socket has the port: trains are possible all the same.
    let (_second_network, second) = start(&pair.a, AUTO);
    assert_eq!(second.mode(), "af-packet");
    let (_third_network, third) = start(&pair.a, WireConfig { trains: false, ..AUTO });
    assert_eq!(third.mode(), "af-packet, single frames (trains need Linux 6.2)");
    pair.b.run(|| {
        let network = Network::start(NetConfig::default(), Box::new(|_| {})).unwrap();
        assert_eq!(open(&AUTO, &network).unwrap().mode(), "udp");
        let xdp = WireConfig { io: Io::AfXdp, ..AUTO };
        let error = open(&xdp, &network).err().unwrap().to_string();
        assert!(error.contains("--io udp"), "{error}");
        let none = WireConfig { io: Io::Loopback, ..AUTO };
        assert_eq!(open(&none, &network).unwrap().mode(), "loopback");
    });
}

#[test]
fn refused_frames_use_nothing_up() {
    // More than there is memory for, all for another Ethernet address.
    for (config, frames) in [(NATIVE, 6000), (PACKET, 300), (SINGLE, 300)] {
        let Some((pair, mut from, mut to)) = pair_of(PACKET, config, 4200) else { return };
        let path = from.path(0);
        let mac = pair.b.run(|| xdp_io::netdev::mac("eth0").unwrap());
        let hops = from.network().hops();
        let neighbour = |mac: MacAddr| {
            pair.a.ip(&format!("neigh replace {V4_B} lladdr {mac} dev eth0 nud permanent"));
            wait_for("the hop to change", || (hops.get(path.hop)?.dst_mac == mac).then_some(()));
        };
        let one = Shape { count: 1, len: 100, last: 100 };
        let mut seen = Seen::default();
        if config.io == Io::AfPacket {
            // The interface's own filter would stop foreign frames.
            pair.b.ip("link set eth0 promisc on");
        }
        neighbour(MacAddr([2, 0, 0, 0, 0, 0x99]));
        for _ in 0..frames / 30 {
            for _ in 0..30 {
                exchange::put(&mut from.wire, &path, 0, 0, one).unwrap();
            }
            from.wire.submit();
            exchange::take(&mut to.wire, &path.flow, &mut seen);
        }
        exchange::take(&mut to.wire, &path.flow, &mut seen);
        assert!(seen.numbers.is_empty());
        let counters = to.wire.counters();
        let foreign = counters.iter().find(|(n, _)| *n == "link_rx_foreign_mac").unwrap().1;
        assert!(foreign > frames * 9 / 10, "{counters:?}");
        neighbour(MacAddr(mac));
        exchange::put(&mut from.wire, &path, 0, 7, one).unwrap();
        from.wire.submit();
        exchange::take_all(&mut to.wire, &path.flow, &mut seen, 1);
    }
}

#[test]
fn dropped_trains_use_nothing_up() {
    let Some((_pair, mut from, mut to)) = pair_of(UDP, UDP, 4200) else { return };
    let path = from.path(0);
    to.wire
        .change_faults(crate::wire::FaultChange::Add(vec!["drop".parse().unwrap()], None))
        .unwrap();
    let one = Shape { count: 1, len: 100, last: 100 };
    let mut seen = Seen::default();
    for _ in 0..1000 {
        exchange::put(&mut from.wire, &path, 0, 0, one).unwrap();
        from.wire.submit();
        exchange::take(&mut to.wire, &path.flow, &mut seen);
    }
    assert!(seen.numbers.is_empty());
    to.wire.change_faults(crate::wire::FaultChange::Clear).unwrap();
    exchange::put(&mut from.wire, &path, 0, 7, one).unwrap();
    from.wire.submit();
    exchange::take_all(&mut to.wire, &path.flow, &mut seen, 1);
}

const FRAMES: Wants = Wants { frames: true, events: false };

#[test]
fn what_is_captured_is_what_was_on_the_wire() {
    for (config, other) in [(PACKET, UDP), (SINGLE, UDP), (UDP, SINGLE), (UDP, NATIVE)] {
        let Some((_pair, mut from, mut to)) = pair_of(config, other, 4200) else { return };
        let path = from.path(0);
        let (watcher, sent) = observe::watch(FRAMES);
        from.wire.observe(&watcher);
        let (watcher, received) = observe::watch(FRAMES);
        to.wire.observe(&watcher);
        let segments = from.wire.caps().max_segments.min(3);
        let shape = Shape { count: segments, len: 1040, last: 100 };
        exchange::put(&mut from.wire, &path, 5, 0, shape).unwrap();
        let lost = exchange::put(&mut from.wire, &path, 9, 0, shape).unwrap();
        from.wire.cancel_from(&lost);
        from.wire.submit();
        exchange::take_all(&mut to.wire, &path.flow, &mut Seen::default(), segments as usize);
        for (feed, way) in [(&sent, Way::Sent), (&received, Way::Received)] {
            let frames = feed.frames();
            assert_eq!(frames.len(), segments as usize);
            for captured in frames {
                assert_eq!(captured.way, way);
                let frame = Frame::parse(&captured.frame).unwrap();
                assert_eq!((frame.flow.src, frame.flow.dst), (V4_A, V4_B));
                assert!(frame.verify_icrc().is_good());
            }
        }
        drop(sent);
        exchange::put(&mut from.wire, &path, 5, 0, shape).unwrap();
        from.wire.submit();
        exchange::take_all(&mut to.wire, &path.flow, &mut Seen::default(), segments as usize);
    }
}

#[test]
fn frames_arrive_on_every_queue() {
    if !is_root("frames_arrive_on_every_queue") {
        return;
    }
    let pair = Pair::with_queues(4200, 4);
    let (sender, mut from) = start(&pair.a, PACKET);
    let (_receiver, mut to) = start(&pair.b, NATIVE);
    assert_eq!(to.fds().len(), 4);
    let (mut path, _hold) = pair.a.run(|| exchange::path(&sender, V4_B));
    let one = Shape { count: 1, len: 2000, last: 2000 };
    let mut seen = Seen::default();
    for number in 0..64 {
        path.flow.sport = 0xc000 + number as u16;
        exchange::put(&mut from, &path, 0, number, one).unwrap();
        from.submit();
        exchange::take_all(&mut to, &path.flow, &mut seen, number as usize + 1);
    }
    assert_eq!(seen.arenas.len(), 4, "{:?}", seen.arenas);
}
