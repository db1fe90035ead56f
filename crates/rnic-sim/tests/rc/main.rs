//! Every RC verb at every interesting size, over good links.

mod send;

use rnic_sim::verbs::Connection;

/// Path MTU codes that scenarios run with.
const MTUS: [u8; 3] = [1, 3, 5];

/// Message sizes around the edges of a path MTU.
fn sizes(mtu: u32) -> Vec<u32> {
    vec![0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 17 * mtu + 5]
}

/// A connection with this path MTU.
fn connection(path_mtu: u8) -> Connection {
    Connection { path_mtu, ..Connection::default() }
}
