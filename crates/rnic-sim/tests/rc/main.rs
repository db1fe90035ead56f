//! Every RC verb at every interesting size, over good links.

mod atomic;
mod events;
mod options;
mod read;
mod send;
mod write;

use rnic_sim::verbs::Connection;

/// Path MTU codes that scenarios run with.
const MTUS: [u8; 3] = [1, 3, 5];
/// Where a target is in its memory.
const TARGET: u64 = 4096;
/// Bytes before and behind it that must not change.
const GUARD: u64 = 64;

/// Message sizes around the edges of a path MTU.
fn sizes(mtu: u32) -> Vec<u32> {
    vec![0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 17 * mtu + 5]
}

/// A connection with this path MTU.
fn connection(path_mtu: u8) -> Connection {
    Connection { path_mtu, ..Connection::default() }
}

/// What memory around a target looks like after `data` was put there.
fn with_guards(mut before: Vec<u8>, data: &[u8]) -> Vec<u8> {
    let guard = usize::try_from(GUARD).unwrap();
    before[guard..guard + data.len()].copy_from_slice(data);
    before
}
