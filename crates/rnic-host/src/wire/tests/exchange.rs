//! Sends numbered datagrams of all shapes through a wire and checks what arrives.

use crate::wire::{DeviceWire, is_link_local};
use rnic_abi::verbs::AhAttr;
use rnic_core::command::Path;
use rnic_core::ports::{ArenaId, RxIpId, RxTrain, TxIpId, TxSlot, TxTrain, Wire};
use rnic_net::{Hold, Network};
use roce_wire::icrc::{self, IpIdHint};
use roce_wire::{Flow, Gid, IcrcCheck};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HEADER: usize = 12;
const TRAILER: usize = 4;
/// Bytes in flight before the receiver is given a turn: less than any queue on the way.
const BURST: usize = 256 * 1024;
const BURST_DATAGRAMS: usize = 128;

/// A path, and what keeps it.
pub(in crate::wire) type Held = (Path, Hold);

/// The path to `peer` from the address of its kind.
pub(in crate::wire) fn path(network: &Network, peer: IpAddr) -> Held {
    let kind = |ip: IpAddr| (ip.is_ipv4(), is_link_local(ip));
    let gids = network.gids();
    let source = gids.iter().find(|entry| kind(Gid(entry.gid).to_ip()) == kind(peer)).unwrap();
    let attr = AhAttr {
        dgid: Gid::from_ip(peer).0,
        sgid_index: source.index as u8,
        flow_label: 0x1_2345,
        traffic_class: 0x62,
        is_global: true,
        port_num: 1,
        ..AhAttr::default()
    };
    network.resolve(&attr).unwrap()
}

/// One end.
pub(in crate::wire) struct Side {
    network: Arc<Network>,
    pub(in crate::wire) wire: DeviceWire,
    paths: [Held; 2],
    ip_id: u16,
}

impl Side {
    pub(in crate::wire) fn new(network: Arc<Network>, wire: DeviceWire, paths: [Held; 2]) -> Self {
        Self { network, wire, paths, ip_id: 0xfff0 }
    }

    pub(in crate::wire) fn network(&self) -> &Network {
        &self.network
    }

    /// To the other side, IPv4 (0) or IPv6 (1).
    pub(in crate::wire) fn path(&self, family: usize) -> Path {
        self.paths[family].0
    }
}

/// A run of datagrams: all of the first length but the last.
#[derive(Clone, Copy, Debug)]
pub(in crate::wire) struct Shape {
    pub(in crate::wire) count: u32,
    pub(in crate::wire) len: u32,
    pub(in crate::wire) last: u32,
}

/// What every pair must carry, given the longest datagram of both.
fn shapes(longest: u32) -> Vec<Shape> {
    let mut all = Vec::new();
    // RoCE datagrams are padded to a multiple of four bytes.
    let longest = longest & !3;
    for len in [16, 20, 60, 64, 300, 1040, 1052, longest - 4, longest] {
        for (count, last) in [(1, len), (2, len), (3, 16), (15, len), (64, len), (64, len - 4)] {
            let last = if count == 1 { len } else { last.clamp(16, len) };
            all.push(Shape { count, len, last });
        }
    }
    all.retain(|shape| shape.len <= longest);
    all
}

/// The datagram numbered `number`, without ICRC.
fn datagram(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 * 7 + number) as u8).collect();
    bytes[..HEADER].copy_from_slice(&[4, 0, 0xff, 0xff, 0, 1, 2, 3, 0, 0, 0, 0]);
    bytes[9..12].copy_from_slice(&number.to_be_bytes()[1..]);
    bytes[len - TRAILER..].fill(0);
    bytes
}

/// Reserves and fills one train whose first datagram has `number`; `None` when the burst is full.
pub(in crate::wire) fn put(
    wire: &mut impl Wire,
    path: &Path,
    ip_id: u16,
    number: u32,
    shape: Shape,
) -> Option<TxSlot> {
    let Shape { count, len, last } = shape;
    let train = TxTrain {
        flow: path.flow,
        hop: path.hop,
        segments: count,
        segment_len: len,
        last_len: last,
        ip_id,
        to_self: false,
    };
    let rule = wire.caps().tx_ip_id;
    let slot = wire.reserve(&train)?;
    let arena = wire.tx(slot.arena);
    for k in 0..count {
        let len = if k + 1 == count { last } else { len } as usize;
        let mut bytes = datagram(number + k, len);
        let id = match rule {
            TxIpId::Ours => ip_id.wrapping_add(k as u16),
            TxIpId::SegmentIndex => k as u16,
        };
        icrc::seal(&path.flow, id, &mut bytes);
        let at = (slot.offset + k * slot.stride) as usize;
        arena[at..at + len].copy_from_slice(&bytes);
    }
    Some(slot)
}

/// What has arrived.
#[derive(Default, Debug)]
pub(in crate::wire) struct Seen {
    /// Numbers, in order of arrival.
    pub(in crate::wire) numbers: Vec<u32>,
    pub(in crate::wire) trains: usize,
    /// Where they were, each once.
    pub(in crate::wire) arenas: Vec<ArenaId>,
    /// Datagrams whose identification was not the predicted one.
    pub(in crate::wire) unpredicted: usize,
}

/// Takes what is there and checks every byte of it.
pub(in crate::wire) fn take(wire: &mut impl Wire, expected: &Flow, seen: &mut Seen) {
    let mut trains: Vec<RxTrain> = Vec::with_capacity(64);
    wire.receive(&mut trains);
    for train in &trains {
        let flow = &train.flow;
        assert_eq!((flow.src, flow.dst), (expected.src, expected.dst));
        assert_eq!((flow.sport, flow.tos), (expected.sport, expected.tos));
        let start = train.range.offset as usize;
        let bytes = &wire.rx(train.arena)[start..start + train.range.len as usize];
        seen.trains += 1;
        if !seen.arenas.contains(&train.arena) {
            seen.arenas.push(train.arena);
        }
        for (k, got) in bytes.chunks(train.segment_len as usize).enumerate() {
            let hint = match train.ip_id {
                RxIpId::Seen(id) => IpIdHint::Known(id.wrapping_add(k as u16)),
                RxIpId::Likely(id) => IpIdHint::Predicted(id.wrapping_add(k as u16)),
            };
            let check = icrc::verify(flow, hint, got);
            assert!(check.is_good(), "datagram {k} of {train:?} after {:?}", seen.numbers.last());
            seen.unpredicted += usize::from(check != IcrcCheck::Good);
            let number = u32::from_be_bytes([0, got[9], got[10], got[11]]);
            let len = got.len();
            assert_eq!(got[..len - TRAILER], datagram(number, len)[..len - TRAILER], "{number}");
            seen.numbers.push(number);
        }
    }
    wire.release();
}

/// Takes until `count` datagrams have arrived.
#[track_caller]
pub(in crate::wire) fn take_all(
    wire: &mut impl Wire,
    expected: &Flow,
    seen: &mut Seen,
    count: usize,
) {
    let start = Instant::now();
    while seen.numbers.len() < count {
        take(wire, expected, seen);
        let arrived = seen.numbers.len();
        assert!(start.elapsed() < Duration::from_secs(5), "only {arrived} of {count} arrived");
    }
}

/// Sends all shapes from `from` to `to`.
pub(in crate::wire) fn converse(from: &mut Side, to: &mut Side, family: usize) {
    let path = from.path(family);
    let (caps, other) = (from.wire.caps(), to.wire.caps());
    let longest = caps.max_datagram.min(other.max_datagram);
    let (mut number, mut in_flight, mut bytes) = (0, 0, 0);
    let mut seen = Seen::default();
    for shape in shapes(longest) {
        let mut left = shape.count;
        while left > 0 {
            let fit = (caps.max_train / shape.len).min(caps.max_segments).min(left);
            let last = if fit == left { shape.last } else { shape.len };
            let part = Shape { count: fit, len: if fit == 1 { last } else { shape.len }, last };
            in_flight += fit as usize;
            bytes += (fit * shape.len) as usize;
            if in_flight > BURST_DATAGRAMS || bytes > BURST {
                from.wire.submit();
                take_all(&mut to.wire, &path.flow, &mut seen, number as usize);
                (in_flight, bytes) = (fit as usize, (fit * shape.len) as usize);
            }
            put(&mut from.wire, &path, from.ip_id, number, part).expect("room in the burst");
            from.ip_id = from.ip_id.wrapping_add(fit as u16);
            number += fit;
            left -= fit;
        }
    }
    from.wire.submit();
    take_all(&mut to.wire, &path.flow, &mut seen, number as usize);
    testbed::wait_for("backlog to leave", || {
        from.wire.submit();
        (!from.wire.has_backlog()).then_some(())
    });
    take(&mut to.wire, &path.flow, &mut seen);
    assert!(seen.numbers.iter().copied().eq(0..number), "out of order or doubled");
    println!(
        "  {} datagrams in {} trains, {} with another identification than predicted",
        number, seen.trains, seen.unpredicted
    );
}
