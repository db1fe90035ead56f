//! Every kind of wire against every other, on veth pairs, through the `Wire` trait.

mod exchange;

use super::{DeviceWire, WireConfig, open};
use crate::config::{Io, XdpMode};
use crate::net::testbed::{Namespace, Pair, V4_A, V4_B, V6_A, V6_B, is_root};
use crate::net::{NetConfig, Network};
use exchange::Side;
use std::sync::Arc;

const UDP: WireConfig = WireConfig { io: Io::Udp, xdp_mode: XdpMode::Auto };
const PACKET: WireConfig = WireConfig { io: Io::AfPacket, xdp_mode: XdpMode::Auto };
const NATIVE: WireConfig = WireConfig { io: Io::AfXdp, xdp_mode: XdpMode::Native };
const GENERIC: WireConfig = WireConfig { io: Io::AfXdp, xdp_mode: XdpMode::Generic };

fn start(namespace: &Namespace, config: WireConfig) -> (Arc<Network>, DeviceWire) {
    namespace.run(|| {
        let place = NetConfig { netdev: Some("eth0".into()), addresses: Vec::new() };
        let network = Network::start(place, Box::new(|_| {})).unwrap();
        let wire = open(&config, &network).unwrap();
        (network, wire)
    })
}

fn converse(a: WireConfig, b: WireConfig, mtus: &[u32]) {
    if !is_root("wires on veth pairs") {
        return;
    }
    for mtu in mtus {
        let pair = Pair::new(*mtu);
        // Both open before either resolves: opening XDP resets the link for a moment.
        let first = start(&pair.a, a);
        let second = start(&pair.b, b);
        let paths_a = [V4_B, V6_B].map(|peer| pair.a.run(|| exchange::path(&first.0, peer)));
        let paths_b = [V4_A, V6_A].map(|peer| pair.b.run(|| exchange::path(&second.0, peer)));
        let mut left = Side::new(first.0, first.1, paths_a);
        let mut right = Side::new(second.0, second.1, paths_b);
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
}

#[test]
fn packet_and_packet() {
    converse(PACKET, PACKET, &[4200]);
}

#[test]
fn packet_and_xdp() {
    converse(PACKET, NATIVE, &[1500, 4200]);
    converse(PACKET, GENERIC, &[1500]);
}

#[test]
fn udp_and_xdp() {
    converse(UDP, NATIVE, &[4200]);
    // A sender's kernel leaves trains joined for a generic program: they must be taken apart.
    converse(UDP, GENERIC, &[1500, 4200]);
}
