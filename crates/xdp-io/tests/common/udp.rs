//! UDP ports on loopback addresses, and what goes in and comes out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use xdp_io::udp::{RxTrain, TxTrain, UdpConfig, UdpPort};

use super::wait_for;

pub(crate) const LOOP_1: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
pub(crate) const LOOP_2: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
pub(crate) const LOOP_6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A port on a number the kernel chooses.
pub(crate) fn bind(addresses: &[IpAddr]) -> UdpPort {
    UdpPort::bind(&UdpConfig::new(addresses.to_vec(), 0)).unwrap()
}

pub(crate) fn train(src: IpAddr, dst: SocketAddr, segment_len: usize) -> TxTrain {
    TxTrain { src, dst, tos: 0x6a, hop_limit: 77, segment_len: segment_len as u16 }
}

pub(crate) fn queue(port: &mut UdpPort, train: &TxTrain, payload: &[u8]) {
    let slot = port.reserve(train, payload.len()).unwrap();
    port.tx_arena_mut()[slot.range()].copy_from_slice(payload);
}

/// What has arrived: descriptions and bytes.
pub(crate) fn drain(port: &mut UdpPort) -> Vec<(RxTrain, Vec<u8>)> {
    let mut out = [RxTrain::default(); 64];
    let count = port.receive(&mut out);
    let bytes = |t: &RxTrain| port.rx_arena()[t.offset..t.offset + t.len].to_vec();
    let trains = out[..count].iter().map(|t| (*t, bytes(t))).collect();
    port.release_rx();
    trains
}

/// Receives datagrams, in whatever trains they come, until `len` bytes are there.
pub(crate) fn collect(port: &mut UdpPort, len: usize) -> (Vec<u8>, Vec<RxTrain>) {
    let (mut bytes, mut trains) = (Vec::new(), Vec::new());
    wait_for("the payload", || {
        for (train, payload) in drain(port) {
            bytes.extend(payload);
            trains.push(train);
        }
        (bytes.len() >= len).then_some(())
    });
    (bytes, trains)
}
