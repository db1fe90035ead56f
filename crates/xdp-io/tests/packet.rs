//! AF_PACKET ports on a veth pair.

mod common;

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::frame::{Frame, is_ipv4_udp, pattern};
use common::netns::{Feature, Pair, switch};
use common::raw::RawSocket;
use common::{skipped_without_root, wait_for};
use testbed::{INTERFACE, V4_A, V4_B, V6_A, V6_B};
use xdp_io::packet::{PacketConfig, PacketPort, RxTrain};
use xdp_io::program::{AttachMode, XdpProgram};
use xdp_io::udp::{self, TxTrain, UdpConfig, UdpPort};
use xdp_io::{Error, TxRefusal};

const PORT: u16 = 4791;

fn open(interface: &str) -> PacketPort {
    open_with(interface, true)
}

/// Without trains a port works as on a kernel that does not know them.
fn open_with(interface: &str, trains: bool) -> PacketPort {
    PacketPort::open(&PacketConfig { trains, ..PacketConfig::new(interface, PORT) }).unwrap()
}

fn drain(port: &mut PacketPort) -> Vec<(RxTrain, Vec<u8>)> {
    let mut out = [RxTrain::default(); 64];
    let count = port.receive(&mut out);
    let bytes = |t: &RxTrain| port.rx_arena()[t.offset..t.offset + t.len].to_vec();
    let trains = out[..count].iter().map(|t| (*t, bytes(t))).collect();
    port.release_rx();
    trains
}

fn queue(port: &mut PacketPort, frame: &[u8], gso_size: u16) {
    let slot = port.reserve(frame.len(), gso_size).unwrap();
    port.tx_arena_mut()[slot.range()].copy_from_slice(frame);
}

fn from_a(pair: &Pair, v6: bool, payload: Vec<u8>) -> Frame {
    let ips = if v6 { (V6_A, V6_B) } else { (V4_A, V4_B) };
    Frame::udp((pair.mac_a, pair.mac_b), ips, PORT, payload)
}

#[test]
fn trains_reach_a_udp_receiver_and_come_back() {
    if skipped_without_root("trains_reach_a_udp_receiver_and_come_back") {
        return;
    }
    let pair = Pair::new(9000);
    let mut a = pair.a.run(|| open(INTERFACE));
    let mut b = pair.b.run(|| UdpPort::bind(&UdpConfig::new(vec![V4_B, V6_B], PORT)).unwrap());
    let mut out = [udp::RxTrain::default(); 64];
    for v6 in [false, true] {
        for (segments, gso_size, last) in [(2, 1040, 1), (15, 4112, 4112), (62, 1040, 523)] {
            let payload = pattern((segments - 1) * gso_size + last, segments as u64);
            queue(&mut a, &from_a(&pair, v6, payload.clone()).build(), gso_size as u16);
            let report = a.submit();
            assert_eq!((report.sent, report.queued), (1, 0), "{:?}", a.stats());
            // One train in, one train out.
            let got = wait_for("the train", || (b.receive(&mut out) > 0).then(|| out[0]));
            assert_eq!((got.len, got.segment_len), (payload.len(), gso_size));
            assert!(b.rx_arena()[got.offset..got.offset + got.len] == payload);
            b.release_rx();

            let (src, dst): (IpAddr, IpAddr) = if v6 { (V6_B, V6_A) } else { (V4_B, V4_A) };
            let back = TxTrain {
                src,
                dst: (dst, PORT).into(),
                tos: 2,
                hop_limit: 64,
                segment_len: gso_size as u16,
            };
            let slot = b.reserve(&back, payload.len()).unwrap();
            b.tx_arena_mut()[slot.range()].copy_from_slice(&payload);
            b.submit();
            let (train, frame) = wait_for("the answer", || drain(&mut a).pop());
            let headers = if v6 { 62 } else { 42 };
            assert_eq!((train.gso_size, train.len), (gso_size, headers + payload.len()));
            assert_eq!(frame[..6], pair.mac_a);
            assert!(frame[headers..] == payload);
        }
    }
}

#[test]
fn without_trains_what_the_kernel_joined_arrives_as_one_frame() {
    if skipped_without_root("without_trains_what_the_kernel_joined_arrives_as_one_frame") {
        return;
    }
    let pair = Pair::new(9000);
    let mut a = pair.a.run(|| open_with(INTERFACE, false));
    let mut b = pair.b.run(|| UdpPort::bind(&UdpConfig::new(vec![V4_B, V6_B], PORT)).unwrap());
    assert_eq!(a.caps().max_segments, 1);
    for (src, dst, headers) in [(V4_B, V4_A, 42), (V6_B, V6_A, 62)] {
        for (segments, len, last) in [(1, 1040, 1040), (2, 1040, 16), (15, 4112, 4112)] {
            let payload = pattern((segments - 1) * len + last, segments as u64);
            let dst = (dst, PORT).into();
            let train = TxTrain { src, dst, tos: 2, hop_limit: 64, segment_len: len as u16 };
            let slot = b.reserve(&train, payload.len()).unwrap();
            b.tx_arena_mut()[slot.range()].copy_from_slice(&payload);
            b.submit();
            let (got, frame) = wait_for("the train", || drain(&mut a).pop());
            assert_eq!((got.gso_size, got.len), (0, headers + payload.len()));
            assert!(frame[headers..] == payload);
        }
    }
    let stats = a.stats();
    assert_eq!((stats.rx_errors, stats.rx_malformed), (0, 0), "{stats:?}");
}

#[test]
fn segments_on_the_wire_have_their_own_headers() {
    if skipped_without_root("segments_on_the_wire_have_their_own_headers") {
        return;
    }
    let pair = Pair::new(9000);
    // Takes segmentation offload from the sender, so that separate packets cross the link.
    let _program =
        pair.b.run(|| XdpProgram::attach(INTERFACE, PORT, None, AttachMode::Native).unwrap());
    let sniffer = pair.b.run(|| RawSocket::open(INTERFACE));
    let mut a = pair.a.run(|| open(INTERFACE));
    for (id, segments) in [(0u16, 1usize), (100, 2), (0xfffe, 15), (7, 62)] {
        let payload = pattern((segments - 1) * 1040 + 523, segments as u64);
        let frame = Frame { id, ..from_a(&pair, false, payload.clone()) };
        queue(&mut a, &frame.build(), 1040);
        assert_eq!(a.submit().sent, 1);
        let mut seen = Vec::new();
        wait_for("the packets", || {
            seen.extend(std::iter::from_fn(|| sniffer.receive()).filter(|f| is_ipv4_udp(f)));
            (seen.len() == segments).then_some(())
        });
        for (k, (got, part)) in seen.iter().zip(payload.chunks(1040)).enumerate() {
            let own =
                Frame { id: id.wrapping_add(k as u16), payload: part.to_vec(), ..frame.clone() };
            let mut expected = own.build();
            // The UDP checksum is the kernel's; all else is as if built one by one.
            expected[40..42].copy_from_slice(&got[40..42]);
            assert!(*got == expected, "segment {k} of {segments}");
        }
    }
}

#[test]
fn what_the_receiving_device_joins_is_described() {
    if skipped_without_root("what_the_receiving_device_joins_is_described") {
        return;
    }
    let pair = Pair::new(9000);
    // The sender cuts its trains up, as for a device that cannot, and the receiver joins packets.
    pair.a.ip(&format!("link set {INTERFACE} gso_max_segs 1"));
    pair.a.run(|| switch(INTERFACE, Feature::TcpSegmentation, false));
    pair.b.run(|| switch(INTERFACE, Feature::Joining, true));
    let mut a = pair.a.run(|| UdpPort::bind(&UdpConfig::new(vec![V4_A, V6_A], PORT)).unwrap());
    let mut b = pair.b.run(|| open(INTERFACE));
    let payload = pattern(62 * 1040, 7);
    for (src, dst) in [(V4_A, V4_B), (V6_A, V6_B)] {
        let train =
            TxTrain { src, dst: (dst, PORT).into(), tos: 0, hop_limit: 64, segment_len: 1040 };
        let headers = if src.is_ipv4() { 14 + 20 + 8 } else { 14 + 40 + 8 };
        let slot = a.reserve(&train, payload.len()).unwrap();
        a.tx_arena_mut()[slot.range()].copy_from_slice(&payload);
        assert_eq!(a.submit().sent, 1);
        let (mut bytes, mut joined) = (Vec::new(), 0);
        wait_for("the payload", || {
            for (train, frame) in drain(&mut b) {
                let part = &frame[headers..];
                let gso_size = if part.len() > 1040 { 1040 } else { 0 };
                assert_eq!(train.gso_size, gso_size, "{train:?}");
                joined += usize::from(gso_size > 0);
                bytes.extend_from_slice(part);
            }
            (bytes.len() >= payload.len()).then_some(())
        });
        assert!(bytes == payload);
        assert!(joined > 0, "the device joined nothing from {src}");
    }
    assert_eq!(b.stats().rx_malformed, 0);
}

#[test]
fn single_frames_of_both_families_and_vlan_cross_unchanged() {
    if skipped_without_root("single_frames_of_both_families_and_vlan_cross_unchanged") {
        return;
    }
    for trains in [true, false] {
        let pair = Pair::new(9000);
        let mut a = pair.a.run(|| open_with(INTERFACE, trains));
        let mut b = pair.b.run(|| open_with(INTERFACE, trains));
        for len in (18..4200).step_by(7).chain([8000, 8900]) {
            for (v6, tags) in [(false, vec![]), (true, vec![]), (false, vec![(0x8100, 0x6005)])] {
                let frame = Frame { tags, ..from_a(&pair, v6, pattern(len, len as u64)) }.build();
                queue(&mut a, &frame, 0);
                a.submit();
                let (train, got) = wait_for("the frame", || drain(&mut b).pop());
                assert!(got == frame, "{len} bytes of payload, IPv6 {v6}, trains {trains}");
                assert_eq!(train.gso_size, 0);
            }
        }
        // Neither port saw its own frames.
        assert!(drain(&mut a).is_empty());
    }
}

#[test]
fn other_traffic_is_filtered_out() {
    if skipped_without_root("other_traffic_is_filtered_out") {
        return;
    }
    let pair = Pair::new(1500);
    let sender = pair.a.run(|| RawSocket::open(INTERFACE));
    let mut b = pair.b.run(|| open(INTERFACE));
    let mut single = pair.b.run(|| open_with(INTERFACE, false));
    let v4 = from_a(&pair, false, pattern(64, 1));
    let v6 = from_a(&pair, true, pattern(64, 2));
    for unwanted in [
        Frame { dst_port: 4790, ..v4.clone() },
        Frame { dst_port: 4790, ..v6.clone() },
        Frame { src_port: PORT, dst_port: 1, ..v4.clone() },
        Frame { protocol: 6, ..v4.clone() },
        Frame { protocol: 6, ..v6.clone() },
        Frame { fragment: 0x2000, ..v4.clone() },
        Frame { fragment: 1, ..v4.clone() },
        Frame { extra: vec![1, 1, 0x12, 0xb7], ..v4.clone() },
        Frame { extra: vec![17, 0, 0x12, 0xb7, 0, 0, 0, 0], ..v6.clone() },
    ] {
        sender.send(&unwanted.build());
    }
    for len in 15..38 {
        sender.send(&v4.build()[..len]);
    }
    for wanted in [v4, v6] {
        sender.send(&wanted.build());
        for port in [&mut b, &mut single] {
            let frames = wait_for("the frame", || Some(drain(port)).filter(|f| !f.is_empty()));
            assert_eq!(frames.len(), 1);
            assert!(frames[0].1 == wanted.build());
        }
    }
}

#[test]
fn the_guard_prevents_port_unreachable() {
    if skipped_without_root("the_guard_prevents_port_unreachable") {
        return;
    }
    let pair = Pair::new(1500);
    let client = pair.a.run(|| {
        let client = UdpSocket::bind((V4_A, 0)).unwrap();
        client.connect((V4_B, PORT)).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        client
    });
    // A refusal shows as an error of the next receive on a connected socket.
    let refused = || {
        client.send(b"hello").unwrap();
        let error = client.recv(&mut [0; 8]).unwrap_err();
        error.kind() == std::io::ErrorKind::ConnectionRefused
    };
    wait_for("the kernel's refusal, without a guard", || refused().then_some(()));
    for addresses in [vec![], vec![V4_B]] {
        let config = PacketConfig { addresses, ..PacketConfig::new(INTERFACE, PORT) };
        let mut port = pair.b.run(|| PacketPort::open(&config).unwrap());
        assert!(!refused(), "the guard keeps the kernel quiet");
        assert_eq!(drain(&mut port).len(), 1);
        assert!(port.guard().unwrap().taken().is_empty());
    }
    // A program that another test starts holds copies of the closed sockets for a moment.
    let bind = || pair.b.run(|| UdpSocket::bind((V4_B, PORT)).ok());
    let holder = wait_for("the port to be free", bind);
    let config = PacketConfig { addresses: vec![V4_B], ..PacketConfig::new(INTERFACE, PORT) };
    let mut port = pair.b.run(|| PacketPort::open(&config).unwrap());
    assert_eq!(port.guard().unwrap().taken(), [V4_B]);
    drop(holder);
    wait_for("the guard to have the port", || {
        pair.b.run(|| port.guard().unwrap().add_address(V4_B).unwrap());
        port.guard().unwrap().taken().is_empty().then_some(())
    });
    assert!(!refused());
}

#[test]
fn refusals_are_counted_and_do_not_hold_up_the_rest() {
    if skipped_without_root("refusals_are_counted_and_do_not_hold_up_the_rest") {
        return;
    }
    let pair = Pair::new(1500);
    let mut a = pair.a.run(|| open(INTERFACE));
    let mut b = pair.b.run(|| open(INTERFACE));
    assert_eq!(a.reserve(0, 0), Err(TxRefusal::Length));
    assert_eq!(a.reserve(70_000, 0), Err(TxRefusal::Length));
    assert_eq!(a.reserve(64 * 100 + 200, 100), Err(TxRefusal::Length));
    let good = from_a(&pair, false, pattern(100, 1)).build();
    let mut broken = from_a(&pair, false, pattern(4000, 1)).build();
    broken[39] ^= 1;
    queue(&mut a, &good, 0);
    queue(&mut a, &broken, 1000);
    queue(&mut a, &from_a(&pair, false, pattern(3000, 1)).build(), 0);
    let cancelled = a.reserve(100, 0).unwrap();
    a.truncate(&cancelled, 0);
    queue(&mut a, &good, 0);
    let report = a.submit();
    let errors = a.stats().tx_errors;
    assert_eq!((report.sent, errors.malformed, errors.too_long), (2, 1, 1), "{errors:?}");
    let mut arrived = 0;
    wait_for("two frames", || {
        arrived += drain(&mut b).iter().filter(|(_, frame)| *frame == good).count();
        (arrived == 2).then_some(())
    });
    pair.a.ip("link set eth0 down");
    queue(&mut a, &good, 0);
    assert_eq!(a.submit().sent, 0);
    assert_eq!(a.stats().tx_errors.link_down, 1);
    let error =
        pair.a.run(|| PacketPort::open(&PacketConfig::new("absent0", PORT)).map(drop).unwrap_err());
    assert!(matches!(error, Error::InterfaceMissing { .. }), "{error}");
}

#[test]
fn without_trains_refusals_are_counted_too() {
    if skipped_without_root("without_trains_refusals_are_counted_too") {
        return;
    }
    let pair = Pair::new(1500);
    let mut a = pair.a.run(|| open_with(INTERFACE, false));
    let mut b = pair.b.run(|| open_with(INTERFACE, false));
    assert_eq!(a.reserve(2 * 1000 + 42, 1000), Err(TxRefusal::Length));
    let good = from_a(&pair, false, pattern(100, 1)).build();
    queue(&mut a, &good, 0);
    queue(&mut a, &from_a(&pair, false, pattern(3000, 1)).build(), 0);
    let cancelled = a.reserve(100, 0).unwrap();
    a.truncate(&cancelled, 0);
    // The length of a train's datagrams means nothing here.
    queue(&mut a, &good, 100);
    let report = a.submit();
    let errors = a.stats().tx_errors;
    assert_eq!((report.sent, errors.too_long, errors.total()), (2, 1, 1), "{errors:?}");
    let mut arrived = 0;
    wait_for("two frames", || {
        arrived += drain(&mut b).iter().filter(|(_, frame)| *frame == good).count();
        (arrived == 2).then_some(())
    });
}

#[test]
fn bulk_trains_over_veth() {
    if skipped_without_root("bulk_trains_over_veth") {
        return;
    }
    let pair = Pair::new(4200);
    let mut a = pair.a.run(|| open(INTERFACE));
    let mut b = pair.b.run(|| open(INTERFACE));
    for (segment, count) in [(4112, 15), (1040, 62), (64, 1)] {
        let frame = from_a(&pair, false, pattern(segment * count, 5)).build();
        let gso_size = if count > 1 { segment as u16 } else { 0 };
        let total = 20_000u64;
        let (mut sent, mut received) = (0u64, 0u64);
        let mut out = [RxTrain::default(); 32];
        let begin = Instant::now();
        while received < total {
            while sent < total && sent - received < 16 {
                queue(&mut a, &frame, gso_size);
                sent += 1;
            }
            a.submit();
            let trains = b.receive(&mut out);
            for got in &out[..trains] {
                let bytes = &b.rx_arena()[got.offset..got.offset + got.len];
                // All but the UDP checksum.
                assert!(bytes[42..] == frame[42..] && bytes[..40] == frame[..40]);
                assert_eq!(got.gso_size, usize::from(gso_size));
                received += 1;
            }
            b.release_rx();
            assert!(begin.elapsed() < Duration::from_secs(20), "{received} trains arrived");
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "AF_PACKET one thread, {count} x {segment} bytes: {:.1} Gbit/s, {:.2} M datagrams/s",
            (total * frame.len() as u64 * 8) as f64 / seconds / 1e9,
            (total * count as u64) as f64 / seconds / 1e6
        );
        assert_eq!(b.stats().rx_kernel_drops, 0);
    }
}
