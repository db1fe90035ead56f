//! Wires whose interface is deleted and made anew.

use super::exchange::{self, Held, Seen, Shape};
use super::{GENERIC, NATIVE, PACKET, SINGLE, UDP};
use crate::wire::{DeviceWire, Membership, WireConfig, open};
use rnic_core::ports::Wire;
use rnic_net::{Change, Incarnation, NetConfig, Network};
use roce_wire::ROCE_PORT;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use testbed::{Namespace, Pair, V4_A, V4_B, V6_A, V6_B, is_root, wait_for};
use xdp_io::xsk::{XskConfig, XskPort};

const LINK_A: &str = "fe80::1";
const LINK_B: &str = "fe80::2";

/// One end, as the daemon has it.
struct End<'a> {
    namespace: &'a Namespace,
    network: Arc<Network>,
    changes: Receiver<Change>,
    /// The interface that was followed last.
    interface: Incarnation,
    wire: DeviceWire,
}

impl<'a> End<'a> {
    fn new(namespace: &'a Namespace, config: WireConfig) -> Self {
        let (sender, changes) = mpsc::channel();
        let (network, wire) = namespace.run(|| {
            let place = NetConfig { netdev: Some("eth0".into()), addresses: Vec::new() };
            // The test may have ended.
            let report = move |change| drop(sender.send(change));
            let network = Network::start(place, Box::new(report)).unwrap();
            let wire = open(&config, &network).unwrap();
            (network, wire)
        });
        let interface = network.now().interface;
        Self { namespace, network, changes, interface, wire }
    }

    fn path(&self, peer: IpAddr) -> Held {
        let network = &self.network;
        self.namespace.run(|| exchange::path(network, peer))
    }

    /// Follows what the network tells until it is as the kernel says, or only the last of that: the
    /// network may be busy until all is over. What it tells later is followed, too, while something
    /// is [waited for](reaches): a wire asks to be told again.
    fn follow(&mut self, each: bool) {
        let index = self.namespace.run(|| xdp_io::netdev::index("eth0").unwrap());
        let last = wait_for("the network to follow", || {
            let change = self.changes.try_recv().ok()?;
            let is_whole = change.addresses.len() == 3 && change.port.active;
            if each {
                self.take_over(&change);
            }
            let is_new = change.interface != self.interface && change.interface.index == index;
            (is_whole && is_new).then_some(change)
        });
        self.interface = last.interface;
        self.take_over(&last);
        assert!(self.network.port().active);
    }

    /// What was told since.
    fn go_on(&mut self) {
        while let Ok(change) = self.changes.try_recv() {
            self.interface = change.interface;
            self.take_over(&change);
        }
    }

    fn take_over(&mut self, change: &Change) {
        let wire = &mut self.wire;
        if let Some(port) = wire.shared_port() {
            port.move_to(change.interface.index);
        }
        assert!(self.namespace.run(|| wire.follow(change)), "the wire is lost");
    }
}

const ONE: Shape = Shape { count: 1, len: 1040, last: 1040 };

/// Sends until something arrives: the peer may have to learn our new Ethernet address first.
fn reaches(from: &mut End, to: &mut End, path: &Held) {
    let mut seen = Seen::default();
    wait_for("a datagram", || {
        from.go_on();
        to.go_on();
        exchange::put(&mut from.wire, &path.0, 0, 0, ONE).unwrap();
        from.wire.submit();
        exchange::take(&mut to.wire, &path.0.flow, &mut seen);
        (!seen.numbers.is_empty()).then_some(())
    });
    exchange::take(&mut to.wire, &path.0.flow, &mut seen);
}

#[test]
fn an_interface_that_is_made_anew_is_used_again() {
    if !is_root("an_interface_that_is_made_anew_is_used_again") {
        return;
    }
    for config in [UDP, PACKET, SINGLE, NATIVE, GENERIC] {
        for users in [false, true] {
            let pair = Pair::new(4200);
            let config = WireConfig { users, ..config };
            let (mut a, mut b) = (End::new(&pair.a, config), End::new(&pair.b, config));
            let link = [LINK_A, LINK_B].map(|ip| ip.parse::<IpAddr>().unwrap());
            let there = [V4_B, V6_B, link[1]].map(|peer| a.path(peer));
            let back = [V4_A, V6_A, link[0]].map(|peer| b.path(peer));
            println!("{}, users: {users}", a.wire.mode());
            let converse = |a: &mut End, b: &mut End| {
                for (there, back) in there.iter().zip(&back) {
                    reaches(a, b, there);
                    reaches(b, a, back);
                }
            };
            converse(&mut a, &mut b);
            for go_and_come in HOW {
                let before = a.wire.counters();
                go_and_come(&pair);
                a.follow(true);
                b.follow(false);
                for ((name, before), (_, now)) in before.iter().zip(a.wire.counters()) {
                    assert!(now >= *before, "{name} went back from {before} to {now}");
                }
                converse(&mut a, &mut b);
            }
        }
    }
}

/// Interfaces are made anew, or are away for a while and come back as they were.
const HOW: [fn(&Pair); 2] = [|pair| pair.make_anew(4200), Pair::lend];

/// Another program has the new interface for a while.
#[test]
fn a_wire_that_cannot_use_the_new_interface_says_so_and_tries_again() {
    if !is_root("a_wire_that_cannot_use_the_new_interface_says_so_and_tries_again") {
        return;
    }
    let pair = Pair::new(4200);
    let (mut a, mut b) = (End::new(&pair.a, NATIVE), End::new(&pair.b, UDP));
    let (there, back) = (a.path(V4_B), b.path(V4_A));
    pair.make_anew(4200);
    b.follow(true);
    let other = pair.a.run(|| XskPort::open(&XskConfig::new("eth0", 4711)).unwrap());
    let change = wait_for("the new interface", || {
        let index = pair.a.run(|| xdp_io::netdev::index("eth0").unwrap());
        let change = a.changes.try_recv().ok()?;
        let is_whole = change.addresses.len() == 3 && change.port.active;
        (is_whole && change.interface.index == index).then_some(change)
    });
    let (network, wire) = (&a.network, &mut a.wire);
    assert!(!pair.a.run(|| wire.follow(&change)));
    assert!(!network.port().active && network.port_of_interface().active);
    let failed = |wire: &mut DeviceWire| counted(wire, "link_reopen_failed");
    assert_eq!(failed(wire), 1);
    // Changes alone are no reason to try again: each attempt may make some.
    assert!(!pair.a.run(|| wire.follow(&change)));
    assert_eq!(failed(wire), 1);
    drop(other);
    wait_for("the time to try again", || {
        let change = a.changes.try_recv().ok()?;
        pair.a.run(|| wire.follow(&change)).then_some(())
    });
    assert!(network.port().active);
    reaches(&mut a, &mut b, &there);
    reaches(&mut b, &mut a, &back);
}

fn counted(wire: &mut DeviceWire, name: &str) -> u64 {
    let counters = wire.counters();
    counters.iter().find(|(other, _)| *other == name).unwrap().1
}

/// Another program has its port for a while, and nothing tells when that is over.
#[test]
fn an_address_that_could_not_be_served_is_tried_again() {
    if !is_root("an_address_that_could_not_be_served_is_tried_again") {
        return;
    }
    for users in [false, true] {
        let pair = Pair::new(4200);
        let config = WireConfig { users, ..UDP };
        let (mut a, mut b) = (End::new(&pair.a, config), End::new(&pair.b, UDP));
        let late: IpAddr = "10.88.0.7".parse().unwrap();
        pair.a.ip("address add 10.88.0.7/32 dev lo");
        let other = pair.a.run(|| UdpSocket::bind((late, ROCE_PORT)).unwrap());
        pair.a.ip("address add 10.88.0.7/24 dev eth0");
        wait_for("attempts to serve the address", || {
            a.go_on();
            (counted(&mut a.wire, "link_bind_failed") >= 3).then_some(())
        });
        assert!(a.network.port().active, "the other addresses are served");
        let [there, to_late] = [V4_A, late].map(|peer| b.path(peer));
        reaches(&mut b, &mut a, &there);
        drop(other);
        reaches(&mut b, &mut a, &to_late);
    }
}

#[test]
fn groups_are_joined_on_the_new_interface() {
    if !is_root("groups_are_joined_on_the_new_interface") {
        return;
    }
    for config in [UDP, PACKET, NATIVE] {
        let pair = Pair::new(4200);
        let (mut a, mut b) = (End::new(&pair.a, UDP), End::new(&pair.b, config));
        let groups = ["239.1.2.3", "ff0e::4791"].map(|group| group.parse::<IpAddr>().unwrap());
        let mut members: Vec<Membership> = Vec::new();
        let mut join = |end: &mut End| {
            for (group, member) in groups.iter().zip(members.drain(..)) {
                let _ = member.leave(*group);
            }
            let (joiner, wire) = (end.wire.joiner().on(end.interface), &mut end.wire);
            for group in groups {
                let member = pair.b.run(|| joiner.join(group).unwrap());
                members.push(member.copy().unwrap());
                wire.join(group, member);
            }
        };
        join(&mut b);
        for go_and_come in HOW {
            go_and_come(&pair);
            a.follow(false);
            b.follow(false);
            join(&mut b);
            for group in groups {
                let path = a.path(group);
                reaches(&mut a, &mut b, &path);
            }
        }
    }
}
